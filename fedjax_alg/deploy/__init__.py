"""A method's rounds with clients on other machines (docs/flower.md)."""
