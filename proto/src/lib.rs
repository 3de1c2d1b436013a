//! Corelane's wire protocol and message format.
