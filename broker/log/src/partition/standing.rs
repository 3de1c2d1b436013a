//! Whether the file that is written still stands: what goes into one that was removed, or cut short, is gone after a
//! restart, whatever the disk says of its flushes.

use super::Partition;
use super::state::Rolling;
use crate::env::{Env, File};

impl<E: Env> Partition<E> {
    /// Looks at the file that is written. Without a name, or shorter than what was made sure of, it takes no more appends:
    /// nothing more is acknowledged as durable, and what was cut off is not looked for. Cheap; to be called now and then.
    pub async fn check_file(&self) {
        let inner = &self.inner;
        let (file, base, least) = {
            let state = inner.state.borrow();
            let written = state.written();
            let Some(file) = written.file.clone() else { return };
            let least = if state.rolling == Rolling::No { state.space.allocated } else { state.durable - written.base };
            (file, written.base, least)
        };
        let (links, bytes) = (file.links().await, file.bytes().await);
        let (what, left) = match (links, bytes) {
            (Ok(0), _) => ("it was removed".to_owned(), None),
            (_, Ok(bytes)) if bytes < least => (format!("it has {bytes} bytes left of {least}"), Some(bytes)),
            // What cannot be asked is no news: a write or a flush will tell.
            _ => return,
        };
        {
            let mut state = inner.state.borrow_mut();
            // Rolled meanwhile, and gone by its right; or the whole partition goes.
            if state.written().base != base || state.ending.is_some() || state.frozen.is_some() {
                return;
            }
            state.cut_at = left.map(|bytes| base + bytes);
        }
        let name = inner.state.borrow().written().name();
        inner.close_for_disk(&format!("keeping {name}"), &std::io::Error::other(what));
    }
}
