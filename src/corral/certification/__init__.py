"""Certify a policy with fresh episodes (`certify`), and hold a certificate to its policy (`check`)."""
