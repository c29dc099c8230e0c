"""Keys as earlier versions wrote them, and what the present one makes of them."""
