"""Look at runs, start them and steer them."""
