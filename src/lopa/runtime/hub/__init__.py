"""Repositories of the Hugging Face Hub: their ids, downloads into the Hub's own cache, and bundles made of them.

The library huggingface_hub does all transfers. Token, cache, endpoint and offline mode are set as its users know them:
`hf auth login`, HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE.
"""
