"""A method's rounds with clients on other machines (docs/deploy.md)."""
