"""Accept rules. All but those in `relaxed` keep the target's distribution exactly, which tests
prove of each by enumeration."""
