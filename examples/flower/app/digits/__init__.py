"""A Flower app that learns to read digits, with NumPy alone."""
