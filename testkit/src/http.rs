//! The one HTTP request that tests make: GET a page of a broker.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A page as it came.
#[derive(Debug)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Gets `path` from the server at `addr`; connecting, and each wait for bytes, may take up to `within`.
pub fn http_get(addr: SocketAddr, path: &str, within: Duration) -> io::Result<HttpAnswer> {
    let mut stream = TcpStream::connect_timeout(&addr, within)?;
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(within))?;
    // Version 1.0: the body then ends with the connection and is never chunked.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {addr}\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not an HTTP answer: {text:.100}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(bad)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(bad)?;
    Ok(HttpAnswer { status, body: body.to_owned() })
}
