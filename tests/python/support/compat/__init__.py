"""What the tests of apex's names share."""
