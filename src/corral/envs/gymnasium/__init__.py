"""Gymnasium environments for Corral (`wrap`), and Corral's environments for Gymnasium (`export`, `ids`)."""
