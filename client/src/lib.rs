//! The Corelane client: producer, consumer, admin.
