//! Backslash escapes in arguments: `\n`, `\t`, `\r`, `\0`, `\\` and `\xNN`, since a shell passes them on untouched.

/// Replaces the escapes in `text`. Bytes, not text: `\xff` need not be UTF-8.
pub(crate) fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'\\' {
            let (escaped, after) = escape(tail)?;
            bytes.push(escaped);
            rest = after;
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    Ok(bytes)
}

/// What stands after a backslash: the byte that it means, and what follows it.
pub(crate) fn escape(tail: &[u8]) -> Result<(u8, &[u8]), String> {
    let simple = match tail {
        [b'n', ..] => b'\n',
        [b't', ..] => b'\t',
        [b'r', ..] => b'\r',
        [b'0', ..] => 0,
        [b'\\', ..] => b'\\',
        [b'x', high, low, after @ ..] => {
            let digit = |byte: &u8| (*byte as char).to_digit(16).map(|digit| digit as u8);
            let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                return Err(r"\x takes two hexadecimal digits, for example \x1f".to_owned());
            };
            return Ok((high << 4 | low, after));
        }
        _ => return Err(r"a backslash begins \n, \t, \r, \0, \\ or \xNN".to_owned()),
    };
    Ok((simple, &tail[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_become_bytes() {
        assert_eq!(unescape(r"a\tb\n\x00\xFF\\\0"), Ok(b"a\tb\n\x00\xff\\\0".to_vec()));
        assert_eq!(unescape("é"), Ok("é".as_bytes().to_vec()));
    }

    #[test]
    fn unknown_and_broken_escapes_are_refused() {
        for text in [r"\q", "\\", r"\x1", r"\xgg"] {
            assert!(unescape(text).is_err(), "{text}");
        }
    }
}
