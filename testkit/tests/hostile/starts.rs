//! Machines that do not let a broker start: it ends within five seconds, with one line that says cause and remedy, and leaves
//! nothing behind.
#![allow(unsafe_code, reason = "a filter for system calls is set by one")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use corelane_testkit::{Broker, BrokerOptions, TestDir, skip};

const REFUSED_WITHIN: Duration = Duration::from_secs(5);
/// Another user.
const NOBODY: u32 = 65_534;
/// Tells this executable to run a command under a filter instead of its tests.
const FILTERED: &str = "HOSTILE_STARTS_FILTERED";

#[track_caller]
fn refusal(options: BrokerOptions) -> String {
    let failure = Broker::try_start(options).expect_err("the start is refused");
    let status = failure.status.unwrap_or_else(|| panic!("the broker gives up by itself: {failure:#?}"));
    assert_eq!(status.code(), Some(1), "{failure:#?}");
    assert!(failure.took < REFUSED_WITHIN, "took {:?}", failure.took);
    let lines: Vec<&str> = failure.stderr.lines().filter(|line| line.starts_with("corelane-broker: ")).collect();
    assert_eq!(lines.len(), 1, "{}", failure.stderr);
    println!("{}", lines[0]);
    lines[0].to_owned()
}

/// Words in front of a command that take all privileges from it, root's too.
const UNPRIVILEGED: [&str; 3] = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"];

/// Without privileges, with what stands in front of the broker's command besides.
fn unprivileged(wrapper: &[&str]) -> BrokerOptions {
    BrokerOptions::new().shards(2).wrapper(UNPRIVILEGED.iter().chain(wrapper).copied())
}

fn give(dir: &TestDir, owner: u32, mode: u32) {
    chown(dir.path(), Some(owner), Some(owner)).expect("a test that may change owners");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).expect("its own directory");
}

fn may_drop_privileges() -> bool {
    let tried = Command::new(UNPRIVILEGED[0]).args(&UNPRIVILEGED[1..]).arg("true").output();
    tried.is_ok_and(|output| output.status.success())
}

#[test]
fn a_memlock_limit_that_is_too_small_is_named_with_the_remedy_and_one_that_passes_the_check_is_enough() {
    if !may_drop_privileges() {
        let name = "a_memlock_limit_that_is_too_small_is_named_with_the_remedy_and_one_that_passes_the_check_is_enough";
        return skip(name, "privileges cannot be dropped here");
    }
    let dir = TestDir::new("memlock");
    let start = |limit_kib: u32| {
        let limit = format!("--memlock={}", limit_kib << 10);
        unprivileged(&["prlimit", &limit]).data(dir.join("data"))
    };
    for limit_kib in [64, 511, 513, 1_023] {
        let line = refusal(start(limit_kib));
        assert!(line.contains("memlock") && line.contains("ulimit -l"), "{line}");
        assert!(!dir.join("data").exists(), "a refused start leaves nothing behind");
    }
    let mut broker = Broker::start(start(1_024));
    broker.stop();
}

#[test]
fn a_directory_that_is_not_ours_to_write_is_named_with_the_remedy() {
    if !may_drop_privileges() {
        let name = "a_directory_that_is_not_ours_to_write_is_named_with_the_remedy";
        return skip(name, "privileges cannot be dropped here");
    }
    // Another user's.
    let dir = TestDir::new("others");
    give(&dir, NOBODY, 0o755);
    for data in [dir.path().to_owned(), dir.join("deeper/still")] {
        let line = refusal(unprivileged(&[]).data(&data));
        assert!(line.contains("not permitted") && line.contains("chown"), "{line}");
        assert!(line.contains(&dir.path().display().to_string()), "{line}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    // Ours, but without the right to write.
    let dir = TestDir::new("read-only");
    give(&dir, rustix::process::geteuid().as_raw(), 0o555);
    let line = refusal(unprivileged(&[]).data(dir.path()));
    assert!(line.contains("not permitted"), "{line}");
}

#[test]
fn io_uring_that_is_forbidden_is_named_with_the_remedy() {
    let dir = TestDir::new("forbidden");
    let wrapper = ["env".to_owned(), format!("{FILTERED}=1"), own_executable(), "--exact".to_owned()];
    let wrapper = wrapper.into_iter().chain(["starts::under_a_filter".to_owned(), "--".to_owned()]);
    let line = refusal(BrokerOptions::new().wrapper(wrapper).data(dir.join("data")));
    assert!(line.contains("io_uring is forbidden") && line.contains("kernel.io_uring_disabled"), "{line}");
    assert!(line.contains("seccomp"), "{line}");
    assert!(!dir.join("data").exists());
}

fn own_executable() -> String {
    std::env::current_exe().expect("this executable has a path").display().to_string()
}

/// Not a test of its own: where the test above asks for it, this executable becomes the broker, and must do without
/// io_uring, as in a container whose profile forbids it.
#[test]
fn under_a_filter() {
    if std::env::var_os(FILTERED).is_none() {
        return;
    }
    forbid_io_uring();
    let words: Vec<String> = std::env::args().skip_while(|word| word != "--").skip(1).collect();
    let error = Command::new(&words[0]).args(&words[1..]).env_remove(FILTERED).exec();
    panic!("{words:?} cannot be executed: {error}");
}

/// From now on `io_uring_setup` fails with EPERM in this process and what it executes (seccomp(2)).
fn forbid_io_uring() {
    let statement = |code: u32, jump_true: u8, jump_false: u8, value: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k: value,
    };
    // Loads the number of the system call, which stands first.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls take numbers and, the second, a pointer to a program that lives until it returns; they change
    // what the kernel allows this process and touch none of its memory.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(set, "a filter cannot be set: {}", std::io::Error::last_os_error());
}

#[test]
fn a_start_that_fails_leaves_no_directory_behind() {
    let dir = TestDir::new("nothing-left");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let addr = taken.local_addr().expect("a bound socket has an address");
    let data = dir.join("new/deep");
    assert!(refusal(BrokerOptions::new().data(&data).listen(addr)).contains("--listen"));
    assert!(refusal(BrokerOptions::new().data(&data).arg("--http").arg(addr.to_string())).contains("--http"));
    assert!(!dir.join("new").exists(), "a refused start left a directory");
}

#[test]
fn a_data_directory_in_memory_is_warned_of() {
    let shm = Path::new("/dev/shm");
    let data = shm.join(format!("corelane-test-{}", std::process::id()));
    let found = fs::create_dir(&data).ok().and_then(|()| rustix::fs::statfs(&data).ok());
    if found.is_none_or(|found| found.f_type != 0x0102_1994) {
        let _ = fs::remove_dir(&data);
        return skip("a_data_directory_in_memory_is_warned_of", "/dev/shm is no tmpfs");
    }
    let started = Broker::try_start(BrokerOptions::new().data(&data));
    match &started {
        Ok(broker) => assert!(broker.log().contains("lies in memory"), "{}", broker.log()),
        // Older kernels have no direct I/O there: that is said instead.
        Err(failure) => assert!(failure.stderr.contains("direct I/O"), "{failure:#?}"),
    }
    drop(started);
    fs::remove_dir_all(&data).expect("the test's own directory");
}
