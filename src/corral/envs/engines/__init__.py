"""The engines that move robots: kinematic JAX, MJX, MuJoCo's C engine on threads."""
