"""Accept rules. All but those in `lossy` keep the target's distribution exactly, which tests
prove of each by enumeration."""
