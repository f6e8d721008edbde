"""The kinds of mixers, one file each: what a layer does over tokens, and what it keeps of them."""
