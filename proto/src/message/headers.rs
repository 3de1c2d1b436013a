//! The headers block: a run of (u16 name length, name, u32 value length, value).

use std::fmt;

use super::FormatError;

/// The value length that means "no value".
const NO_VALUE: u32 = u32::MAX;

/// One header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header<'a> {
    /// Its name; names may repeat.
    pub name: &'a str,
    /// Its value; an empty value is not the same as none.
    pub value: Option<&'a [u8]>,
}

impl Header<'_> {
    /// Bytes it takes in the headers block.
    pub(super) fn encoded_bytes(&self) -> usize {
        2 + self.name.len() + 4 + self.value.map_or(0, <[u8]>::len)
    }

    /// Appends it; the caller has checked the lengths.
    pub(super) fn encode_into(&self, out: &mut impl bytes::BufMut) {
        out.put_u16_le(self.name.len() as u16);
        out.put_slice(self.name.as_bytes());
        out.put_u32_le(self.value.map_or(NO_VALUE, |value| value.len() as u32));
        out.put_slice(self.value.unwrap_or_default());
    }
}

/// The headers of a message, in order: an iterator, cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Headers<'a> {
    block: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Of a block that [`check`] has passed.
    pub(super) fn new(block: &'a [u8]) -> Headers<'a> {
        Headers { block }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;
    fn next(&mut self) -> Option<Header<'a>> {
        if self.block.is_empty() {
            return None;
        }
        // The message was parsed, so its block is good; were it not, the run would end here.
        let (header, rest) = split_first(self.block).ok()?;
        self.block = rest;
        Some(header)
    }
}

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// Whether the block is a run of whole headers.
pub(super) fn check(mut block: &[u8]) -> Result<(), FormatError> {
    while !block.is_empty() {
        block = split_first(block)?.1;
    }
    Ok(())
}

fn split_first(block: &[u8]) -> Result<(Header<'_>, &[u8]), FormatError> {
    let cut = |reason| FormatError::BadHeaders { reason };
    let (name_bytes, rest) = block.split_first_chunk().ok_or(cut("a name's length is cut"))?;
    let (name, rest) =
        rest.split_at_checked(usize::from(u16::from_le_bytes(*name_bytes))).ok_or(cut("a name is cut"))?;
    let name = std::str::from_utf8(name).map_err(|_| cut("a name is not UTF-8"))?;
    let (value_bytes, rest) = rest.split_first_chunk().ok_or(cut("a value's length is cut"))?;
    let value_bytes = u32::from_le_bytes(*value_bytes);
    if value_bytes == NO_VALUE {
        return Ok((Header { name, value: None }, rest));
    }
    let (value, rest) = rest.split_at_checked(value_bytes as usize).ok_or(cut("a value is cut"))?;
    Ok((Header { name, value: Some(value) }, rest))
}
