"""The version of relevo, where the lowest layers can have it: dead letters say which one wrote them."""

VERSION = "0.1.0"
