//! What a partition promises to whoever publishes, reads and keeps it, each promise shown once on the simulated disk over a
//! few seeds. The random histories are in `model/`.

mod keeping;
mod kit;
mod opening;
mod publishing;
mod reading;
mod recovering;
mod topics;
