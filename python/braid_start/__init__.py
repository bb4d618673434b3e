"""What happens before code of braid is loaded: a package of its own, because importing braid loads it."""
