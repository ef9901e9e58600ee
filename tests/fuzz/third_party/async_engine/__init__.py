"""A small runner that knows nothing of mrv2: no model, but streams, events, a pinned ring and downloads of its own."""
