"""What the tests of O1 and O4 share."""
