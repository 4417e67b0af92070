"""``python -m aiorate simulate --arrivals``: what would this limit do to my traffic?"""
