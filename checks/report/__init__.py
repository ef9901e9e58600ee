"""What every report of findings shares, on a console or in pytest: identity, baseline, and findings as plain lines."""
