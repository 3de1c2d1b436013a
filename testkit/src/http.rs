//! The few HTTP requests that tests make of a broker's pages.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A page as it came.
#[derive(Debug)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Gets `path` from the server at `addr`; connecting, and each wait for bytes, may take up to `within`.
pub fn http_get(addr: SocketAddr, path: &str, within: Duration) -> io::Result<HttpAnswer> {
    request(addr, "GET", path, "", "", within)
}

/// Puts `body` to `path`, with further header lines (each ends with `\r\n`).
pub fn http_put(addr: SocketAddr, path: &str, headers: &str, body: &str, within: Duration) -> io::Result<HttpAnswer> {
    request(addr, "PUT", path, headers, body, within)
}

fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
    within: Duration,
) -> io::Result<HttpAnswer> {
    let mut stream = TcpStream::connect_timeout(&addr, within)?;
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(within))?;
    // Version 1.0: the body then ends with the connection and is never chunked.
    let bytes = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {addr}\r\nContent-Length: {bytes}\r\n{headers}\r\n{body}")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not an HTTP answer: {text:.100}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(bad)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(bad)?;
    Ok(HttpAnswer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}
