"""The configuration in force and the strategy that is entered; the devices that they give, and what is refused."""
