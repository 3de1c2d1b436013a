//! The process's heap as a whole: giving back to the system what is free in it.

/// Gives the free pages of the heap back to the system. The allocator keeps them by itself when something that is still in
/// use lies behind them. Takes milliseconds for each hundred MiB that are free; other threads that allocate may wait.
pub fn give_back_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time by any thread; it touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
