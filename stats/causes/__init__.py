"""Why a sampler failed an audit: causes that the evidence, or a few more questions to the sampler, single out."""
