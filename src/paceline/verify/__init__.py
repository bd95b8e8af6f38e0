"""Accept rules. Those here keep the target's distribution exactly; tests prove each of them."""
