class Inventory: pass
def take_inventory(): pass
