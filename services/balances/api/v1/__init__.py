"""The version of the read side's API whose amounts are integers and whose refusals are problems of RFC 9457."""
