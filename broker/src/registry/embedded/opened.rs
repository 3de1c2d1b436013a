//! The open file of the embedded registry, shared by its one writer and by whoever reads: it can be closed and opened anew
//! under them, and says meanwhile why it is closed.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::{fs, io};

use redb::{Database, ReadTransaction, ReadableDatabase as _, WriteTransaction};

use super::reserved::{Reserve, ReservedFile};
use crate::registry::store::{StoreError, StoreResult};

/// What redb may keep in memory, in bytes: a registry of thousands of topics is a few megabytes.
const CACHE_BYTES: usize = 4 << 20;

/// The file.
pub(super) struct Opened {
    path: PathBuf,
    database: RwLock<Option<Database>>,
    failure: Mutex<StoreError>,
}

impl Opened {
    /// Closed as yet.
    pub(super) fn new(path: &Path) -> Self {
        let failure = StoreError::Unavailable("its file is not open yet".to_owned());
        Self { path: path.to_owned(), database: RwLock::default(), failure: Mutex::new(failure) }
    }

    /// Opens the file, or makes it; anew, if it is open. Every page is read and its checksum compared: by itself redb does
    /// that only after a crash, and a rotten page would be served as it is.
    pub(super) fn open(&self) -> Result<Reserve, redb::Error> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // Gives up its lock.
        *database = None;
        if !self.path.exists() {
            make(&self.path)?;
        }
        let (file, reserve) = ReservedFile::open(&self.path)?;
        let mut opening = Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(file)?;
        if !opening.check_integrity()? {
            let path = self.path.display();
            tracing::error!(%path, "the registry's file was damaged; what could be read is served, the last changes may be gone");
        }
        *database = Some(opening);
        Ok(reserve)
    }

    /// Notes why it has to be opened anew: what callers are told, until it is open again.
    pub(super) fn note(&self, error: &redb::Error) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = match error {
            redb::Error::Io(error) if error.kind() == io::ErrorKind::StorageFull => StoreError::NoSpace,
            error => StoreError::Unavailable(error.to_string()),
        };
    }

    pub(super) fn is_open(&self) -> bool {
        self.database.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Why it was closed last.
    pub(super) fn last_failure(&self) -> StoreError {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks at the state of this moment.
    pub(super) fn read<T>(&self, look: impl FnOnce(&ReadTransaction) -> StoreResult<T>) -> StoreResult<T> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = database.as_ref().ok_or_else(|| self.last_failure())?;
        look(&database.begin_read().map_err(read_failed)?)
    }

    /// Changes it; for the writer only, while it is open.
    pub(super) fn write<T>(&self, change: impl FnOnce(WriteTransaction) -> T) -> Result<T, redb::Error> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = database.as_ref().expect("the writer opens the file before it writes");
        Ok(change(database.begin_write()?))
    }
}

/// Makes the file under another name first: one that a crash left half made could not be opened, and nobody has a backup
/// of it.
fn make(path: &Path) -> Result<(), redb::Error> {
    let new = path.with_extension("redb.new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let (file, _) = ReservedFile::open(&new)?;
    drop(Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(file)?);
    Ok(fs::rename(&new, path)?)
}

/// A read that failed leaves the file closed to redb, until the writer meets that and opens it anew.
pub(super) fn read_failed(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Unavailable(error.into().to_string())
}
