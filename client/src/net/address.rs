//! `host:port` as people write it.

use crate::error::CallError;

/// The port when none is given.
const PORT_DEFAULT: u16 = 9400;

/// Brings an address into the form `host:port`; `[...]` around an IPv6 address stays.
pub(crate) fn normalise(address: &str) -> Result<String, CallError> {
    let invalid = |reason: &str| {
        Err(CallError::Invalid { field: "bootstrap", reason: format!("{address:?}: {reason}, expected HOST:PORT") })
    };
    let (host, port) = if let Some(end) = address.rfind(']') {
        // A bare IPv6 address has colons of its own, so its port is what follows the bracket.
        (&address[..=end], address[end + 1..].strip_prefix(':'))
    } else if address.matches(':').count() > 1 {
        return invalid("an IPv6 address needs brackets");
    } else {
        match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        }
    };
    if host.is_empty() {
        return invalid("there is no host");
    }
    let port = match port {
        None => PORT_DEFAULT,
        Some(port) => match port.parse::<u16>() {
            Ok(port) if port > 0 => port,
            _ => return invalid("the port is not a number from 1 to 65535"),
        },
    };
    Ok(format!("{host}:{port}"))
}

/// The address of a broker as the cluster tells it.
pub(crate) fn of_broker(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (written, meant) in [
            ("localhost", "localhost:9400"),
            ("10.0.0.1:99", "10.0.0.1:99"),
            ("[::1]", "[::1]:9400"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(normalise(written).unwrap(), meant);
        }
        for bad in ["", ":9400", "h:", "h:0", "h:65536", "h:x", "::1"] {
            assert!(normalise(bad).is_err(), "{bad:?}");
        }
        assert_eq!(of_broker("::1", 5), "[::1]:5");
        assert_eq!(of_broker("b", 5), "b:5");
    }
}
