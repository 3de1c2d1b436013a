//! The registry on a real etcd against the suite that every store must pass, and what only a server that may be away, full
//! or guarded promises.

mod store_suite;

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use corelane_broker::registry::etcd::{CompactionRule, EtcdOptions, EtcdStore, EtcdTls, EtcdUser};
use corelane_broker::registry::keys::{Key, Keys};
use corelane_broker::registry::records::{ClusterRecord, Record};
use corelane_broker::registry::store::{Change, Store, StoreError, StoreResult, Txn, Watch, list};
use corelane_broker::registry::view::Follower;
use corelane_testkit::{
    Broker, BrokerOptions, Etcd, Port, Proxy, TestDir, has_openssl, http_get, make_certificate, skip, wait_until,
};
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, ConnectOptions, Permission};
use store_suite::Fixture;

/// Only a broken store takes so long.
const PATIENCE: Duration = Duration::from_mins(1);

/// An etcd, shared by the tests of one run, each under a prefix of its own.
struct OnEtcd {
    etcd: Rc<RefCell<Etcd>>,
    prefix: String,
    store: EtcdStore,
}

impl OnEtcd {
    fn new(etcd: Rc<RefCell<Etcd>>, prefix: String) -> Self {
        let store = store_on(&etcd.borrow());
        Self { etcd, prefix, store }
    }

    fn restarted(self, between: impl FnOnce(&Etcd)) -> Self {
        {
            let mut etcd = self.etcd.borrow_mut();
            etcd.stop();
            between(&etcd);
            etcd.restart();
        }
        Self::new(self.etcd, self.prefix)
    }
}

impl Fixture for OnEtcd {
    type Store = EtcdStore;

    fn prefix(&self) -> String {
        self.prefix.clone()
    }

    fn store(&self) -> EtcdStore {
        self.store.clone()
    }

    async fn compact(&self) {
        let endpoint = self.etcd.borrow().endpoint();
        let mut client = client_of(&endpoint).await;
        let revision = self.store.commit(Txn::new().put("/filler", Vec::new())).await.expect("commit").revision;
        client.compact(revision.cast_signed(), None).await.expect("compacted");
    }

    async fn restart(self) -> Self {
        self.restarted(|_| {})
    }

    async fn restart_and_save(self) -> Self {
        self.restarted(|etcd| etcd.save("saved"))
    }

    async fn restart_as_saved(self) -> Self {
        self.restarted(|etcd| etcd.restore("saved"))
    }
}

/// Starts one, or says why not.
fn start(test: &str, args: &[&str]) -> Option<Etcd> {
    if Etcd::installed().is_none() {
        skip(test, "no etcd; the Debian package etcd-server has it");
        return None;
    }
    Some(Etcd::start(args))
}

fn store_on(etcd: &Etcd) -> EtcdStore {
    EtcdStore::new(EtcdOptions::new([etcd.endpoint()], "/")).expect("good options")
}

async fn client_of(endpoint: &str) -> Client {
    Client::connect([endpoint], None).await.expect("a client")
}

async fn put(store: &EtcdStore, key: &str, value: &str) -> StoreResult<u64> {
    store.commit(Txn::new().put(key, value.into())).await.map(|outcome| outcome.revision)
}

/// Tries again while that may help.
async fn until_done<T>(mut request: impl AsyncFnMut() -> StoreResult<T>) -> T {
    let began = Instant::now();
    loop {
        match request().await {
            Ok(done) => return done,
            Err(error) => assert!(error.is_retryable() && began.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn etcd_keeps_what_every_store_promises() {
    let Some(etcd) = start("etcd_keeps_what_every_store_promises", &[]) else { return };
    let (etcd, tests) = (Rc::new(RefCell::new(etcd)), Cell::new(0));
    store_suite::run_all(async || {
        tests.set(tests.get() + 1);
        OnEtcd::new(Rc::clone(&etcd), format!("/t{:02}/", tests.get()))
    })
    .await;
}

#[tokio::test]
async fn topics_and_brokers_keep_their_promises_on_etcd() {
    let Some(etcd) = start("topics_and_brokers_keep_their_promises_on_etcd", &[]) else { return };
    store_suite::topics::run_all(&store_on(&etcd)).await;
    store_suite::membership::run_all(&store_on(&etcd)).await;
}

#[tokio::test]
async fn groups_keep_their_promises_on_etcd() {
    let Some(etcd) = start("groups_keep_their_promises_on_etcd", &[]) else { return };
    store_suite::groups::run_all(&store_on(&etcd)).await;
}

#[tokio::test]
async fn a_watch_misses_nothing_while_etcd_is_killed_and_comes_back() {
    let Some(mut etcd) = start("a_watch_misses_nothing_while_etcd_is_killed_and_comes_back", &[]) else { return };
    let store = store_on(&etcd);
    let first = put(&store, "/w/a", "1").await.expect("put");
    let mut watch = store.watch("/w/", first).await.expect("watch");
    let mut seen = Vec::new();
    let mut take = async |count: usize| {
        while seen.len() < count {
            let changes = tokio::time::timeout(PATIENCE, watch.next()).await.expect("in time").expect("changes");
            seen.extend(changes.changes.into_iter().map(|change| match change {
                Change::Put(entry) => String::from_utf8(entry.value).expect("text"),
                Change::Deleted { key, .. } => panic!("{key} was not deleted"),
            }));
        }
        seen.clone()
    };
    assert_eq!(take(1).await, ["1"]);
    for round in 0..3 {
        etcd.kill9();
        let error = put(&store, "/w/b", "lost").await.expect_err("nobody is there");
        assert!(error.is_retryable(), "{error}");
        etcd.restart();
        // The same store goes on by itself, and its watch from where it was, whichever comes first.
        let value = format!("{}", 2 + round);
        until_done(async || put(&store, "/w/a", &value).await).await;
    }
    assert_eq!(take(4).await, ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn a_restored_etcd_is_noticed_by_those_who_knew_it() {
    let Some(mut etcd) = start("a_restored_etcd_is_noticed_by_those_who_knew_it", &[]) else { return };
    put(&store_on(&etcd), "/r/a", "1").await.expect("put");
    etcd.stop();
    etcd.save("saved");
    etcd.restart();
    // One asks, one only watches and is up to date, one begins a watch while etcd is away.
    let (asks, watches, comes_late) = (store_on(&etcd), store_on(&etcd), store_on(&etcd));
    let mut last = 0;
    for i in 0..5 {
        last = put(&asks, "/r/a", &format!("2.{i}")).await.expect("put");
    }
    let mut watch = watches.watch("/r/", last).await.expect("watch");
    assert_eq!(watch.next().await.expect("changes").revision, last);
    let (_, listed) = list(&comes_late, "/r/").await.expect("list");
    etcd.stop();
    etcd.restore("saved");
    let mut late = comes_late.watch("/r/", listed + 1).await.expect("watch");
    etcd.restart();

    for watch in [&mut watch, &mut late] {
        let word = tokio::time::timeout(PATIENCE, watch.next()).await.expect("in time");
        assert_eq!(word, Err(StoreError::WentBack));
    }
    // It may have counted; what followed from it would not.
    assert_eq!(put(&asks, "/r/b", "3").await, Err(StoreError::WentBack));
    assert_eq!(asks.get("/r/a").await, Err(StoreError::WentBack), "for good");
    let fresh = store_on(&etcd);
    assert_eq!(fresh.get("/r/a").await.expect("get").expect("there").value, b"1");
}

#[tokio::test]
async fn another_life_of_etcd_is_noticed_though_it_has_come_past_what_was_seen() {
    let test = "another_life_of_etcd_is_noticed_though_it_has_come_past_what_was_seen";
    let Some(mut etcd) = start(test, &[]) else { return };
    let keys = Keys::new("c");
    let cluster = |incarnation| ClusterRecord { cluster_id: "id".to_owned(), incarnation }.to_bytes();
    let set_incarnation = async |store: &EtcdStore, incarnation| {
        let txn = Txn::new().put(keys.key(&Key::Cluster), cluster(incarnation));
        until_done(async || store.commit(txn.clone()).await).await
    };
    set_incarnation(&store_on(&etcd), 1).await;
    etcd.stop();
    etcd.save("saved");
    etcd.restart();
    let way = Proxy::start(etcd.addr());
    let begin = async || {
        let store = EtcdStore::new(EtcdOptions::new([format!("http://{}", way.addr())], "/")).expect("good options");
        Follower::start(&store, &keys).await.expect("follows")
    };
    // One listed at the revision that was saved, so that its watch goes on below the record that tells of the new life; the
    // other one above it.
    let mut early = begin().await;
    for i in 0..5 {
        put(&store_on(&etcd), "/other", &i.to_string()).await.expect("put");
    }
    let mut late = begin().await;
    way.refuse(true);
    way.cut();
    etcd.stop();
    etcd.restore("saved");
    etcd.restart();
    let store = store_on(&etcd);
    set_incarnation(&store, 2).await;
    while store.seen().await.expect("seen").revision <= late.view().revision {
        put(&store, "/other", "of the new life").await.expect("put");
    }
    way.heal();
    for follower in [&mut early, &mut late] {
        let last_word = async {
            loop {
                if let Err(word) = follower.next().await {
                    break word;
                }
            }
        };
        assert_eq!(tokio::time::timeout(PATIENCE, last_word).await.expect("in time"), StoreError::WentBack);
    }
}

#[tokio::test]
async fn an_endpoint_that_is_away_is_passed_over() {
    let Some(mut etcd) = start("an_endpoint_that_is_away_is_passed_over", &[]) else { return };
    let nobody = [Port::reserve(), Port::reserve()].map(|port| (format!("http://{}", port.addr()), port));
    let endpoints = [nobody[0].0.clone(), etcd.endpoint(), nobody[1].0.clone()];
    let store = EtcdStore::new(EtcdOptions::new(endpoints, "/")).expect("good options");
    put(&store, "/e/a", "1").await.expect("the one that is there is found");
    etcd.kill9();
    let error = store.get("/e/a").await.expect_err("nobody is there");
    assert!(error.is_retryable() && error.to_string().contains("http://127.0.0.1"), "{error}");
    etcd.restart();
    assert!(until_done(async || store.get("/e/a").await).await.is_some());
    put(&store, "/e/a", "2").await.expect("found again, and commits are sent to it only");
}

#[tokio::test]
async fn an_etcd_that_does_not_answer_is_given_up_in_time() {
    // Connections are taken, and nothing is ever said on them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", silent.local_addr().expect("bound"));
    let store = EtcdStore::new(EtcdOptions::new([endpoint], "/")).expect("good options");
    let mut watch = store.watch("/a", 1).await.expect("a watch that is yet to begin");
    let asked = async { tokio::join!(store.get("/a"), put(&store, "/a", "1"), store.grant(PATIENCE), watch.next()) };
    let (get, put, grant, watched) = tokio::time::timeout(PATIENCE, asked).await.expect("given up");
    for error in [get.expect_err("get"), put.expect_err("put"), grant.expect_err("grant"), watched.expect_err("watch")]
    {
        assert!(error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn a_full_etcd_is_named_as_such_and_recovers() {
    let test = "a_full_etcd_is_named_as_such_and_recovers";
    let Some(etcd) = start(test, &["--quota-backend-bytes", "4194304"]) else { return };
    let store = store_on(&etcd);
    let check = store.check(&CompactionRule::default()).await.expect("checked");
    assert!(!check.is_full, "{check:?}");
    let large = "x".repeat(1 << 20);
    let error = loop {
        if let Err(error) = put(&store, "/f/a", &large).await {
            break error;
        }
    };
    assert_eq!(error, StoreError::NoSpace);
    assert!(error.is_retryable());
    assert_eq!(store.grant(PATIENCE).await, Err(StoreError::NoSpace), "leases neither");
    assert!(store.get("/f/a").await.expect("reads go on").is_some());
    let check = store.check(&CompactionRule::default()).await.expect("checked");
    assert!(check.is_full && check.warnings.iter().any(|warning| warning.contains("defrag")), "{check:?}");

    // What the warning says helps.
    let mut client = client_of(&etcd.endpoint()).await;
    let revision = store.seen().await.expect("seen").revision;
    client.compact(revision.cast_signed(), None).await.expect("compacted");
    // Compaction frees pages in the background; defragmenting needs what it freed.
    until_done(async || {
        let mut client = client.clone();
        let _ = client.defragment().await;
        let alarms = client.alarm(AlarmAction::Get, AlarmType::Nospace, None).await.expect("alarms");
        for alarm in alarms.alarms() {
            let mut member = AlarmOptions::new();
            member.with_member(alarm.member_id());
            client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(member)).await.expect("disarmed");
        }
        put(&store, "/f/b", "1").await
    })
    .await;
    assert!(!store.check(&CompactionRule::default()).await.expect("checked").is_full);
}

#[tokio::test]
async fn history_that_nobody_compacts_is_warned_of() {
    let Some(etcd) = start("history_that_nobody_compacts_is_warned_of", &[]) else { return };
    let store = store_on(&etcd);
    for i in 0..10 {
        put(&store, "/c/a", &i.to_string()).await.expect("put");
    }
    let strict = CompactionRule { revisions_at_first: 5, within: Duration::ZERO, revisions_since: 5 };
    let warned = async |store: &EtcdStore| {
        let check = store.check(&strict).await.expect("checked");
        check.warnings.iter().any(|warning| warning.contains("--auto-compaction-mode"))
    };
    assert!(warned(&store).await);
    let lenient = store_on(&etcd).check(&CompactionRule::default()).await.expect("checked");
    assert!(!lenient.warnings.iter().any(|warning| warning.contains("compaction")), "a young store: {lenient:?}");
    let revision = store.seen().await.expect("seen").revision;
    client_of(&etcd.endpoint()).await.compact(revision.cast_signed(), None).await.expect("compacted");
    assert!(!warned(&store_on(&etcd)).await);
}

/// Gives etcd a user `corelane` who may read and write under `/corelane/main/`, and asks for users from then on.
async fn add_user(etcd: &Etcd, password: &str) {
    let mut admin = client_of(&etcd.endpoint()).await;
    admin.user_add("root", "rootpw", None).await.expect("root");
    admin.role_add("root").await.expect("role");
    admin.user_grant_role("root", "root").await.expect("granted");
    admin.user_add("corelane", password, None).await.expect("user");
    admin.role_add("broker").await.expect("role");
    let permission = Permission::read_write("/corelane/main/").with_prefix();
    admin.role_grant_permission("broker", permission).await.expect("granted");
    admin.user_grant_role("corelane", "broker").await.expect("granted");
    admin.auth_enable().await.expect("enabled");
}

/// As whoever looks after etcd.
async fn change_password(etcd: &Etcd, password: &str) {
    let options = ConnectOptions::new().with_user("root", "rootpw");
    let mut admin = Client::connect([etcd.endpoint()], Some(options)).await.expect("a client");
    admin.user_change_password("corelane", password).await.expect("changed");
}

/// A file with this password.
fn password_file(dir: &TestDir, password: &str) -> PathBuf {
    let path = dir.join(password);
    fs::write(&path, format!("{password}\n")).expect("written");
    path
}

/// A store that shows the password in this file.
fn store_as(etcd: &Etcd, password_file: &Path) -> EtcdStore {
    let user = Some(EtcdUser::new("corelane", password_file).expect("a file"));
    let options = EtcdOptions { user, ..EtcdOptions::new([etcd.endpoint()], "/corelane/main/") };
    EtcdStore::new(options).expect("good options")
}

#[tokio::test]
async fn a_changed_password_is_taken_from_its_file_and_until_then_the_refusal_is_told() {
    let test = "a_changed_password_is_taken_from_its_file_and_until_then_the_refusal_is_told";
    let Some(etcd) = start(test, &[]) else { return };
    add_user(&etcd, "secret").await;
    let dir = TestDir::new("password");
    let file = password_file(&dir, "secret");
    let store = store_as(&etcd, &file);
    let first = put(&store, "/corelane/main/a", "1").await.expect("put");
    let mut watch = store.watch("/corelane/main/", first + 1).await.expect("watch");
    change_password(&etcd, "changed").await;
    let refused = put(&store, "/corelane/main/a", "2").await.expect_err("refused");
    assert!(matches!(refused, StoreError::Refused(_)) && refused.is_retryable(), "{refused}");
    assert!(refused.to_string().contains("etcd_password_file"), "{refused}");
    assert!(matches!(store.warnings().await, Err(StoreError::Refused(_))));
    fs::write(&file, "changed\n").expect("written");
    let second = until_done(async || put(&store, "/corelane/main/a", "2").await).await;
    while tokio::time::timeout(PATIENCE, watch.next()).await.expect("in time").expect("changes").revision < second {}
    // The file first: nobody notices the change in etcd but whoever was refused once.
    fs::write(&file, "again\n").expect("written");
    change_password(&etcd, "again").await;
    assert_eq!(store.get("/corelane/main/a").await.expect("read").expect("there").value, b"2");
}

#[tokio::test]
async fn a_broker_that_etcd_refuses_serves_what_it_holds_says_so_and_is_let_in_by_its_password_file() {
    let test = "a_broker_that_etcd_refuses_serves_what_it_holds_says_so_and_is_let_in_by_its_password_file";
    let Some(etcd) = start(test, &[]) else { return };
    add_user(&etcd, "secret").await;
    let dir = TestDir::new("broker-password");
    let file = password_file(&dir, "wrong");
    let options = BrokerOptions::new()
        .shards(1)
        .args(["--etcd", &etcd.endpoint(), "--cluster", "main", "--etcd-user", "corelane", "--broker-lease", "3s"])
        .args(["--etcd-password-file", file.to_str().expect("a readable path")]);
    let failure = Broker::try_start(options.clone()).expect_err("a directory that was never used has nothing to serve");
    assert!(failure.status.is_some() && failure.stderr.contains("etcd_password_file"), "{failure:?}");
    fs::write(&file, "secret").expect("written");
    let mut broker = Broker::start(options);

    let page = |broker: &Broker, path: &str| {
        let answer = http_get(broker.http_addr(), path, PATIENCE).expect("the page answers");
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    };
    let is_refused = |broker: &Broker| {
        let metrics = page(broker, "/metrics");
        page(broker, "/health/ready").contains("etcd_password_file") && metrics.contains("corelane_registry_up 0")
    };
    change_password(&etcd, "changed").await;
    wait_until("the refusal to be told", PATIENCE, || is_refused(&broker));
    assert!(broker.log().contains("etcd_password_file"), "{}", broker.log());
    // Restarted before the file has followed.
    broker.restart();
    assert!(broker.log().contains("the registry does not let this broker in"), "{}", broker.log());
    wait_until("the refusal to be told again", PATIENCE, || is_refused(&broker));
    fs::write(&file, "changed").expect("written");
    wait_until("it to be let in", PATIENCE, || {
        page(&broker, "/metrics").contains("corelane_registry_up 1") && !is_refused(&broker)
    });
}

#[tokio::test]
async fn a_user_sees_its_prefix_and_nothing_else() {
    let Some(mut etcd) = start("a_user_sees_its_prefix_and_nothing_else", &[]) else { return };
    add_user(&etcd, "secret").await;
    let dir = TestDir::new("passwords");
    let with = |password: &str| store_as(&etcd, &password_file(&dir, password));
    let store = with("secret");
    let first = put(&store, "/corelane/main/a", "1").await.expect("put");
    let mut watch = store.watch("/corelane/main/", first).await.expect("watch");
    assert_eq!(watch.next().await.expect("changes").revision, first);
    assert!(matches!(put(&store, "/corelane/other/a", "1").await, Err(StoreError::Failed(_))));
    let mut elsewhere = store.watch("/corelane/", first).await.expect("watch");
    let word = tokio::time::timeout(PATIENCE, elsewhere.next()).await.expect("in time");
    assert!(matches!(word, Err(StoreError::Failed(_))), "{word:?}");
    let wrong = with("wrong").get("/corelane/main/a").await;
    assert!(
        matches!(&wrong, Err(StoreError::Refused(reason)) if reason.contains("authentication failed")),
        "{wrong:?}"
    );
    let nobody = EtcdStore::new(EtcdOptions::new([etcd.endpoint()], "/corelane/main/")).expect("good options");
    assert!(matches!(nobody.get("/corelane/main/a").await, Err(StoreError::Refused(_))));

    // The tokens that it gave out go with a member that stops.
    etcd.restart();
    let second = until_done(async || put(&store, "/corelane/main/a", "2").await).await;
    while tokio::time::timeout(PATIENCE, watch.next()).await.expect("in time").expect("changes").revision < second {}
}

#[tokio::test]
async fn tls_is_spoken_with_servers_that_the_ca_vouches_for() {
    let test = "tls_is_spoken_with_servers_that_the_ca_vouches_for";
    if !has_openssl() {
        return skip(test, "no openssl");
    }
    let dir = TestDir::new("tls");
    make_certificate(dir.path(), "ca", "server");
    make_certificate(dir.path(), "other-ca", "other");
    let path = |name: &str| dir.join(name);
    let text = |name: &str| path(name).to_str().expect("a readable path").to_owned();
    let (certificate, key, ca) = (text("server.pem"), text("server.key"), text("ca.pem"));
    let args = ["--cert-file", &certificate, "--key-file", &key, "--client-cert-auth", "--trusted-ca-file", &ca];
    let Some(etcd) = start(test, &args) else { return };

    let with = |ca: &str, client: Option<&str>| {
        let client = client.map(|name| (path(&format!("{name}.pem")), path(&format!("{name}.key"))));
        let tls = Some(EtcdTls { ca_file: path(&format!("{ca}.pem")), client, server_name: None });
        EtcdStore::new(EtcdOptions { tls, ..EtcdOptions::new([etcd.endpoint()], "/") }).expect("good options")
    };
    let store = with("ca", Some("server"));
    put(&store, "/s/a", "1").await.expect("put");
    for (refused, why) in [
        (with("other-ca", Some("server")), "a server of another CA"),
        (with("ca", Some("other")), "a client of another CA"),
        (with("ca", None), "a client without a certificate"),
    ] {
        assert!(put(&refused, "/s/a", "2").await.is_err(), "{why}");
    }
    assert_eq!(store.get("/s/a").await.expect("get").expect("there").value, b"1");
}
