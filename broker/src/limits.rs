//! Every bound of the broker in one place, each with what happens when it is reached. What must fit into what is proved
//! by the assertions at the end, at compile time. What an operator may change is a setting (config.rs); its range is
//! bounded by the constants here.

use std::time::Duration;

use corelane_log::env::BLOCK_BYTES;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

// ---- Sets and frames -------------------------------------------------------------------------------------------

/// The largest `set_bytes_max` that a topic may have, in bytes. A larger one is refused as `INVALID_REQUEST`; a larger
/// set as `TOO_LARGE`, its bytes read past.
pub const SET_BYTES_LIMIT: usize = 8 * MIB;
/// The largest `message_bytes_max` that a topic may have, in bytes.
pub const MESSAGE_BYTES_LIMIT: usize = SET_BYTES_LIMIT;
/// The protobuf message of a request, in bytes. A larger one closes the connection, with one log line: nothing that
/// follows on it could be found again.
pub const REQUEST_PROTO_BYTES_MAX: usize = 64 * KIB;
/// A request's frame after its length field, in bytes; told in Hello. A larger one closes the connection.
pub const FRAME_BYTES_MAX: usize = SET_BYTES_LIMIT + 12 + REQUEST_PROTO_BYTES_MAX;
/// The protobuf message of an answer, in bytes; clients take no longer one. What would be longer is answered `TOO_LARGE`.
pub const ANSWER_PROTO_BYTES_MAX: usize = 4 * MIB;
/// Entries in one page of a list, whatever the request's limit is; the rest comes in further pages.
pub const PAGE_ENTRIES_MAX: usize = 10_000;
/// After so many bytes a page ends, with one entry at least.
pub const PAGE_BYTES: usize = MIB;
/// What one Fetch returns at most, in bytes, whatever it asks for: it gets this much and asks again.
pub const FETCH_BYTES_MAX: usize = 4 * MIB;
/// How long a Fetch may wait for data, at most; a longer wish is cut to this.
pub const FETCH_WAIT_MAX: Duration = Duration::from_mins(1);

// ---- Connections -----------------------------------------------------------------------------------------------

/// A connection's receive buffer when it is new, in bytes.
pub const RECEIVE_BUFFER_BYTES_MIN: usize = KIB;
/// What the buffer grows to while small frames come faster than it empties, in bytes. Larger payloads never go through
/// it; a larger request message makes it longer while that is read, as its bytes come and not before.
pub const RECEIVE_BUFFER_BYTES_MAX: usize = 16 * KIB;
/// What all buffers of a shard may be longer than that, together, in bytes. Reached: who needs more waits for the others,
/// and those that do not come are late sooner.
pub const RECEIVE_BUFFERS_EXTRA_BYTES_MAX: usize = 64 * MIB;
/// What the kernel may hold of what one peer on this machine has sent, in bytes ...
pub const SENT_AHEAD_BYTES: usize = 4 * MIB;
/// ... and of all such connections of a shard together. Reached: the kernel holds of the others what it does by itself.
pub const SENT_AHEAD_BYTES_MAX: usize = 128 * MIB;
/// Requests of one connection that were read and are not answered. Reached: nothing more is read.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 4096;
/// Of these, requests other than publishes, such as long polls. Reached: nothing more is read.
pub const WAITS_MAX: usize = 1024;
/// Requests of all connections of a shard that wait for news (long polls); each costs about 2 KiB. Reached: the next one is
/// answered `BUSY`, unless there is an answer at once.
pub const SHARD_LONG_POLLS_MAX: usize = 50_000;
/// Bytes that wait to be sent on one connection. Reached: nothing more is read. What is in flight then may still add to it.
pub const OUTGOING_BYTES_MAX: usize = 8 * MIB;
/// Of these, bytes that do not lie in the log. Reached: nothing more is read.
pub const OUTGOING_HEAD_BYTES_MAX: usize = 256 * KIB;
/// Bytes that wait to be sent on all connections of a shard and do not lie in the log. Reached: requests whose answers may
/// be long (all but `Publish`, `Fetch` and `FindMessage`) are answered `BUSY`, and readers that are stuck are closed after
/// `STUCK_AFTER_S` already.
pub const SHARD_OUTGOING_HEAD_BYTES_MAX: usize = 64 * MIB;
/// Descriptions of topics and groups that a shard has under way for its connections; each may be of megabytes, which are
/// counted among those that wait to be sent only once they are there. The next ones wait.
pub const SHARD_DESCRIPTIONS_MAX: usize = 4;
/// What is sent of a file between two turns of the other tasks, in bytes.
pub const SEND_PIECE_BYTES: usize = 256 * KIB;
/// Bytes that the kernel takes of one connection beyond what the peer's window has room for; then it pushes back. Without
/// this it takes megabytes for a peer that reads nothing, which no bound of ours would count.
pub const SEND_BUFFERED_BYTES_MAX: usize = 256 * KIB;
/// From so many bytes in one piece of memory on they are sent by reference, to a peer on another machine; fewer are copied.
/// Pinning and the second completion cost about as much as copying 10 KiB does (the kernel's `msg_zerocopy.rst`); here a turn of
/// the shard comes on top, and small pieces are gathered into one call.
pub const ZERO_COPY_BYTES_MIN: usize = 32 * KIB;
/// What the kernel holds by reference of one connection, in bytes, until its peer has acknowledged it: what a fast network
/// has under way. Reached: what follows is copied.
pub const ZERO_COPY_CONNECTION_BYTES_MAX: usize = 2 * MIB;
/// One part in so many of the arena is what the kernel may hold by reference of all connections of a shard, counted in whole
/// chunks: it cannot be taken back from a peer that does not acknowledge. Reached: what follows is copied.
pub const ZERO_COPY_ARENA_PART: usize = 8;
/// A reader that takes nothing for so long, in seconds, while the kernel holds memory by reference for it and somebody waits
/// for memory, is closed: nothing else gives it back. As long as a frame may be behind that others do not wait for.
pub const ZERO_COPY_STUCK_MAX_S: u32 = 10;
/// After so many sends by reference one after the other that the kernel copied all the same (the peer is on this machine
/// behind a virtual network, or the network card cannot gather), a connection's bytes are copied at once, which costs less.
pub const ZERO_COPY_IN_VAIN_MAX: u32 = 16;
/// What is read from a file into memory at a time to be sent, in bytes. As much again is read ahead.
pub const READ_PIECE_BYTES: usize = 512 * KIB;
/// From so many bytes in a closed segment on they are sent by reference to the page cache; fewer are read and copied, which
/// costs less.
pub const SPLICE_BYTES_MIN: usize = 64 * KIB;
/// Pipes of one shard that carry such bytes. All in use: bytes are read and copied.
pub const PIPES_MAX: usize = 32;
/// What was read longer ago for a peer that does not take it is given back while others wait for memory to read into. Longer,
/// and readers that take nothing hold up the others for so long, by turns; shorter, and what is taken slowly is read twice.
pub const READ_HELD_MAX: Duration = Duration::from_millis(25);
/// One part in so many of the arena is what reads of files for all connections of a shard may hold; the next one waits.
pub const FILE_READS_ARENA_PART: usize = 4;
/// After so many bytes of requests a connection lets the other tasks of the shard have their turn ...
pub const YIELD_AFTER_BYTES: usize = 256 * KIB;
/// ... each request counting for so many more.
pub const YIELD_COST_BYTES: usize = 512;
/// How long a new connection may take to say Hello; then it is closed. Also how long an answer to it may take.
pub const HELLO_MAX: Duration = Duration::from_secs(5);
/// Connections on their way from the shard that accepted them to the one that they want. Reached: BUSY.
pub const HAND_OVERS_MAX: usize = 256;
/// How far a frame that has begun to arrive may fall behind `RECEIVE_BYTES_A_SECOND`, in seconds; then the connection is
/// closed, so that memory set aside for it comes back: a few that claim much and send nothing must not hold up a shard.
pub const RECEIVE_LAG_MAX_S: u32 = 10;
/// The same while somebody waits for the memory of what arrives. Then it may not be silent for longer either.
pub const RECEIVE_LAG_SCARCE_MAX_S: u32 = 2;
/// The slowest rate at which a frame may arrive then, in bytes a second.
pub const RECEIVE_BYTES_A_SECOND_SCARCE: usize = 64 * KIB;
/// While more than half of a shard's arena is in use, so many bytes of a set must have come before memory is set aside for
/// the whole of it: what has been claimed only must not keep out what is being sent.
pub const CLAIM_PROVEN_BYTES: usize = 64 * KIB;
/// For so long after a frame had to be closed that others waited for, in seconds, a shard believes no claim while memory is
/// scarce: a set comes into a receive buffer first, whole.
pub const WARY_S: u32 = 60;
/// The slowest rate at which a frame may arrive, in bytes a second.
pub const RECEIVE_BYTES_A_SECOND: usize = 16 * KIB;
/// A reader that takes nothing for so long, in seconds, keeps nothing of the log in memory any more.
pub const STUCK_AFTER_S: u32 = 2;
/// A reader that takes nothing for so long, in seconds, is closed.
pub const SEND_MAX_S: u32 = 30;
/// The least `idle_timeout`: the time after which a connection on which nothing happens is closed.
pub const IDLE_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The least `peer_timeout`: the time after which a peer whose machine does not answer is given up.
pub const PEER_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The longest `peer_timeout`.
pub const PEER_TIMEOUT_MAX: Duration = Duration::from_hours(1);
/// Connections together may take one part in so many of the descriptors that the process may open; the rest is for files.
/// A larger `connections_max` is cut to that, with a warning.
pub const CONNECTIONS_DESCRIPTORS_PART: u64 = 2;
/// What a connection and a long poll take on the heap, in bytes, about.
pub const CONNECTION_BYTES_ABOUT: usize = 16 * KIB;
/// See above.
pub const LONG_POLL_BYTES_ABOUT: usize = 2 * KIB;
/// When clients have let go of so many bytes on the heap since they held the most, its free pages go back to the system.
pub const RECLAIM_BYTES: usize = 16 * MIB;
/// How long the answers of a connection that sends no more may take; then it is closed.
pub const FINISH_ANSWERS_MAX: Duration = Duration::from_secs(5);

// ---- Shards ----------------------------------------------------------------------------------------------------

/// Partitions of one shard that are recovered at a time.
pub const OPENINGS_AT_A_TIME: usize = 16;
/// How often a shard writes its checkpoint while something changes.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// Partitions of a shard on which nothing happens whose files are looked at before a checkpoint; others have their turn at
/// the next one. Each costs two system calls.
pub const FILES_CHECKED_A_TURN: usize = 500;
/// How long a checkpoint that could not be written rests before the next try.
pub const CHECKPOINT_RETRY: Duration = Duration::from_secs(5);
/// How long an orderly stop waits for answers to be taken, once everything is flushed.
pub const STOP_ANSWERS_MAX: Duration = Duration::from_secs(2);

// ---- Partitions ------------------------------------------------------------------------------------------------

/// The smallest segment, in bytes; tests roll early with it.
pub const SEGMENT_BYTES_MIN: usize = 64 * KIB;
/// The largest segment, in bytes.
pub const SEGMENT_BYTES_LIMIT: usize = 64 * 1024 * MIB;
/// The smallest write window W of a partition, in bytes: a whole set must fit, or it could never be flushed.
pub const UNFLUSHED_BYTES_MIN: usize = SET_BYTES_LIMIT + BLOCK_BYTES;
/// The largest write window W, in bytes: a start after a crash writes so much again for each busy partition.
pub const UNFLUSHED_BYTES_LIMIT: usize = 256 * MIB;
/// The smallest arena of a shard, in bytes: two largest sets under way, one of them received and one written.
pub const ARENA_BYTES_MIN: usize = 4 * SET_BYTES_LIMIT;
/// The largest arena of a shard, in bytes.
pub const ARENA_BYTES_LIMIT: usize = 64 * 1024 * MIB;

// ---- Topics ----------------------------------------------------------------------------------------------------

/// Partitions of one topic. More are refused as `INVALID_REQUEST`.
pub const TOPIC_PARTITIONS_MAX: u32 = 10_000;
/// The highest position that a new log may begin at; far above, and no log comes near the last position there is.
pub const START_MAX: u64 = 1 << 62;
/// Steps by which a topic can be an exact copy of others' copies; more are refused as `INVALID_REQUEST`.
pub const COPY_STEPS_MAX: usize = 16;
/// The longest of these steps: ids of clusters and names of topics are bounded.
pub const COPY_STEP_BYTES_MAX: usize = 480;
/// Topic and group calls that wait for the control thread to take them up, over all shards. The next one is answered `BUSY`.
pub const CONTROL_QUEUE_MAX: usize = 4_096;
/// Topic and group calls that the control thread works on; the next ones wait in its queue. Heartbeats that wait for news
/// are among them, so it is beyond what groups may have under way.
pub const CONTROL_CALLS_MAX: usize = GROUP_CALLS_MAX + 4_096;
/// Messages from the control thread that wait for one shard; the control thread waits for room.
pub const SHARD_QUEUE_MAX: usize = 1024;
/// How long a topic call may take on the control thread before it is answered `REGISTRY_UNAVAILABLE`.
pub const TOPIC_CALL_MAX: Duration = Duration::from_mins(1);
/// How long the next change of topics waits for this broker to see where the partitions of the one before it are to lie; then
/// it places its own by what is known.
pub const PLACES_SEEN_MAX: Duration = Duration::from_secs(2);
/// Partitions that one broker makes at a time.
pub const CREATIONS_AT_A_TIME: usize = 64;
/// How often partitions that could not be made, for want of room mostly, are tried again.
pub const HOST_RETRY: Duration = Duration::from_secs(2);
/// How often creations that died are looked for.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// How long the marker of a creation may stand unchanged before the creation counts as dead.
pub const CREATION_DEAD_AFTER: Duration = Duration::from_mins(2);

// ---- Registry --------------------------------------------------------------------------------------------------

/// Keys that one transaction writes when many are to be written: compares count as operations, and etcd allows
/// `TXN_OPERATIONS_MAX` of them.
pub const TXN_PAGE: usize = 50;
/// Operations in one transaction, compares included, as etcd counts them by default. More is an error of ours.
pub const TXN_OPERATIONS_MAX: usize = 128;
/// Keys that one range read returns; the rest comes in further pages at the same revision.
pub const RANGE_PAGE: usize = 500;
/// Revisions that the embedded registry remembers, for watches and for reads at a revision. Older ones are `Compacted`:
/// the reader lists again.
pub const HISTORY_REVISIONS_MAX: u64 = 10_000;
/// Changes that a watch hands out at once.
pub const WATCH_BATCH_MAX: usize = 1_000;
/// Commits waiting for the embedded registry's thread; the next caller waits for room.
pub const STORE_QUEUE_MAX: usize = 1_024;
/// Commits that share one flush of the embedded registry.
pub const STORE_GROUP_MAX: usize = 128;
/// A value's size, in bytes. etcd takes 1.5 MiB a request.
pub const REGISTRY_VALUE_BYTES_MAX: usize = MIB;
/// How long a broker waits, on average, before it lists a registry again that did not answer.
pub const REGISTRY_RETRY: Duration = Duration::from_secs(1);
/// Keys and values of one transaction together, in bytes: below what etcd takes by default.
pub const TXN_BYTES_MAX: usize = MIB + 256 * KIB;
/// How long it may take to connect to an endpoint of etcd, before the next one is tried.
pub const ETCD_CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long etcd may take to answer a request, before it counts as unavailable.
pub const ETCD_REQUEST_MAX: Duration = Duration::from_secs(3);
/// How long etcd is not asked again after it has refused the broker's password everywhere.
pub const ETCD_REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// An answer of etcd, in bytes: a page of a range, or the changes of many revisions. A larger one ends a watch, whose reader
/// lists again, and fails a read.
pub const ETCD_ANSWER_BYTES_MAX: usize = 64 * MIB;
/// How often a connection to etcd is asked for a sign of life. Below five seconds etcd would close it.
pub const ETCD_PING_INTERVAL: Duration = Duration::from_secs(6);
/// How long that sign may take, before the connection counts as dead.
pub const ETCD_PING_MAX: Duration = Duration::from_secs(3);
/// Leases whose life is remembered between two keep-alives. More cost a further request each.
pub const LEASE_LIVES_KNOWN_MAX: usize = 10_000;
/// Batches of changes that a watch of etcd reads ahead of whoever takes them; then etcd keeps them.
pub const WATCH_BATCHES_MAX: usize = 16;
/// The first pause before a watch of etcd that ended is begun again; it doubles up to `WATCH_PAUSE_MAX`.
pub const WATCH_PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause between two tries to begin a watch again.
pub const WATCH_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a watch is tried to be begun again, before it reports that etcd is unavailable.
pub const WATCH_RESUME_MAX: Duration = Duration::from_secs(20);
/// How often the registry is listed anew though nothing seems to be wrong: a watch that lost a change would never tell.
pub const REGISTRY_RELIST_INTERVAL: Duration = Duration::from_mins(10);
/// How often the registry is asked what an operator should know of it; more often while there is something.
pub const REGISTRY_WARNINGS_INTERVAL: Duration = Duration::from_mins(1);
/// How often what was seen of the registry is noted on disk, when it has changed.
pub const REMEMBER_INTERVAL: Duration = Duration::from_secs(10);

// ---- Groups ----------------------------------------------------------------------------------------------------

/// A group's name, in bytes.
pub const GROUPS_NAME_BYTES_MAX: usize = 249;
/// Members of one group. The next one is answered `TOO_LARGE`.
pub const GROUP_MEMBERS_MAX: usize = 5_000;
/// Names and patterns of one group: those of its members, and those that it ever subscribed to as far as there is room.
pub const GROUP_SUBSCRIPTIONS_MAX: usize = 2_000;
/// Topics that one member subscribes to by name.
pub const SUBSCRIBED_NAMES_MAX: usize = 1_000;
/// A pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 1_000;
/// What a pattern is compiled to, in bytes: a millisecond's work. A larger one is refused.
pub const PATTERN_PROGRAM_BYTES_MAX: usize = 64 * KIB;
/// Patterns that a broker keeps compiled; above it, all are forgotten and compiled again as they are needed.
pub const PATTERNS_KEPT_MAX: usize = 2_000;
/// A client's name, in bytes.
pub const CLIENT_NAME_BYTES_MAX: usize = 128;
/// Partitions that one Claim, Commit, Release or `ResetGroup` names. More are answered `TOO_LARGE`.
pub const PARTITIONS_A_CALL_MAX: usize = 500;
/// Partitions that one transaction claims.
pub const CLAIMS_A_TXN: usize = 50;
/// Positions that one transaction commits.
pub const COMMITS_A_TXN: usize = 100;
/// How often a position is tried to be committed while others keep changing it, before it is answered `RETRY`.
pub const COMMIT_TRIES_MAX: u32 = 5;
/// A chunk of a group's target, in bytes.
pub const TARGET_CHUNK_BYTES: usize = 256 * KIB;
/// A group's whole target, in bytes: it is written in one transaction.
pub const TARGET_BYTES_MAX: usize = MIB;
/// Topics that are no more of which one target's transaction removes the positions.
pub const GONE_TOPICS_A_TARGET: usize = 20;
/// How long a member counts as alive after its last heartbeat, unless it asks for another time.
pub const MEMBER_LEASE_LIFE: Duration = Duration::from_secs(10);
/// The shortest such time.
pub const MEMBER_LEASE_LIFE_MIN: Duration = Duration::from_secs(1);
/// The longest such time. After a registry was restored, nothing is claimed for so long.
pub const MEMBER_LEASE_LIFE_MAX: Duration = Duration::from_mins(1);
/// How long a member may hold one message, unless it asks for another time.
pub const PROCESSING_MAX: Duration = Duration::from_mins(5);
/// How long a commit waits for others to share its transaction, at least, while commits follow each other.
pub const COMMIT_WINDOW_MIN: Duration = Duration::from_millis(50);
/// The same, at most, however slow the registry is.
pub const COMMIT_WINDOW_MAX: Duration = Duration::from_secs(1);
/// Positions that wait to be committed. The next call is answered `BUSY`.
pub const COMMITS_WAITING_MAX: usize = 50_000;
/// Transactions with commits that are under way at a time.
pub const COMMIT_TXNS_AT_A_TIME: usize = 4;
/// Committed positions that are remembered to save a read each; then all are forgotten.
pub const POSITIONS_KNOWN_MAX: usize = 200_000;
/// Members whose attachment is remembered to save a read a call; then all are forgotten.
pub const SESSIONS_KNOWN_MAX: usize = 20_000;
/// Group calls under way, heartbeats that wait included. The next one is answered `BUSY`.
pub const GROUP_CALLS_MAX: usize = 20_000;
/// Two targets of a group are at least so far apart.
pub const TARGET_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// While members keep coming, the next target waits until none has come for so long ...
pub const TARGET_QUIET: Duration = Duration::from_millis(300);
/// ... and at most so long. Also for so long after a target the next one is not written at once.
pub const TARGET_WAIT_MAX: Duration = Duration::from_secs(3);
/// How much a broker that did not cause a change itself waits at most for whoever did to write the target.
pub const TARGET_COURTESY_MAX: Duration = Duration::from_millis(60);
/// How often members are looked at that do not do what the target asks.
pub const OVERDUE_INTERVAL: Duration = Duration::from_millis(500);
/// After a longer pause between two such looks, what is overdue counts anew.
pub const OVERDUE_GAP_MAX: Duration = Duration::from_secs(3);
/// How often the groups are listed anew, lest a broker go on with a view that is wrong.
pub const GROUPS_LIST_INTERVAL: Duration = Duration::from_mins(5);

// ---- Process ---------------------------------------------------------------------------------------------------

/// Shards of one broker.
pub const SHARDS_MAX: usize = 256;
/// The longest time that an orderly stop may take; whatever has not ended then is cut off.
pub const STOP_MAX: Duration = Duration::from_secs(9);
/// Connections to the HTTP page; the next one takes the place of the oldest, which is closed.
pub const HTTP_CONNECTIONS_MAX: usize = 32;
/// Questions of the HTTP pages that are being answered at once; the next ones wait. Each gathers figures from every shard, so
/// that visitors by the hundred shall not keep the control thread from its work.
pub const HTTP_QUESTIONS_MAX: usize = 4;
/// How long a connection to the HTTP page may last; it is closed then, whatever it does.
pub const HTTP_CONNECTION_MAX: Duration = Duration::from_secs(10);
/// Lines of each kind that the metrics page has of groups; what is beyond is counted. Reached: of lags the largest are told.
pub const METRICS_GROUP_LINES_MAX: usize = 1_000;
/// Topics and groups that the status page shows; those beyond, with the least bytes, are counted.
pub const STATUS_LINES_MAX: usize = 100;
/// Committed positions that lags are computed from. Reached: those beyond are left out, and the pages say so.
pub const LAG_POSITIONS_MAX: usize = 100_000;
/// How old such positions may be, at least, before they are read again for a page.
pub const LAG_POSITIONS_AGE: Duration = Duration::from_secs(5);
/// They are read again so many times later than that took, so that they cost the registry a small part of its time.
pub const LAG_POSITIONS_PART: u32 = 20;
/// How long a page waits for them; it shows older ones then.
pub const LAG_POSITIONS_WAIT: Duration = Duration::from_secs(2);
/// What a request may send to a page, in bytes; a longer one is refused.
pub const HTTP_BODY_BYTES_MAX: usize = 4 * KIB;
/// How long a page waits for a shard's figures; a shard that does not answer is named as not ready.
pub const SHARD_ANSWER_MAX: Duration = Duration::from_secs(2);

// ---- What must fit into what -----------------------------------------------------------------------------------

const _: () = assert!(corelane_proto::frame::HEADER_BYTES - 4 == 12, "a frame's length counts the header behind it");
const _: () =
    assert!(SET_BYTES_LIMIT == corelane_log::limits::SET_BYTES_LIMIT as usize, "broker and log agree on sets");
const _: () = assert!(
    SEGMENT_BYTES_LIMIT as u64 <= corelane_log::limits::SEGMENT_BYTES_LIMIT,
    "the log takes the largest segment"
);
const _: () =
    assert!(SEGMENT_BYTES_MIN as u64 >= corelane_log::limits::SEGMENT_BYTES_MIN, "the log takes the smallest segment");
const _: () = assert!(
    REQUEST_PROTO_BYTES_MAX == corelane_proto::frame::REQUEST_PROTO_BYTES_MAX as usize,
    "requests are as long as clients are told that they may be"
);
const _: () = assert!(
    ANSWER_PROTO_BYTES_MAX == corelane_proto::frame::PROTO_BYTES_MAX as usize,
    "answers are as long as clients take them"
);
const _: () = assert!(2 * PAGE_BYTES <= ANSWER_PROTO_BYTES_MAX, "a page fits an answer, beside what is told with it");
const _: () = assert!(UNFLUSHED_BYTES_MIN >= SET_BYTES_LIMIT + BLOCK_BYTES, "the write window holds the largest set");
const _: () = assert!(
    UNFLUSHED_BYTES_MIN as u64 == corelane_log::limits::UNFLUSHED_BYTES_MIN,
    "broker and log agree on the smallest write window"
);
const _: () = assert!(UNFLUSHED_BYTES_LIMIT >= UNFLUSHED_BYTES_MIN, "the write window has a range");
const _: () = assert!(ARENA_BYTES_MIN >= 2 * (SET_BYTES_LIMIT + BLOCK_BYTES), "the arena holds two largest sets");
const _: () = assert!(
    ARENA_BYTES_MIN - ARENA_BYTES_MIN / corelane_log::limits::ARENA_RESERVE_PART >= 2 * (SET_BYTES_LIMIT + BLOCK_BYTES),
    "the log finds room for two largest sets beside its reserve"
);
const _: () = assert!(
    ARENA_BYTES_MIN
        - ARENA_BYTES_MIN / corelane_log::limits::ARENA_RESERVE_PART
        - ARENA_BYTES_MIN / FILE_READS_ARENA_PART
        - ARENA_BYTES_MIN / ZERO_COPY_ARENA_PART
        >= 2 * (SET_BYTES_LIMIT + BLOCK_BYTES),
    "the log finds room for two largest sets beside all that is held for readers"
);
const _: () = assert!(
    ZERO_COPY_BYTES_MIN <= SEND_PIECE_BYTES && SEND_PIECE_BYTES <= ZERO_COPY_CONNECTION_BYTES_MAX,
    "a piece can be sent by reference"
);
const _: () = assert!(
    ZERO_COPY_CONNECTION_BYTES_MAX <= ARENA_BYTES_MIN / ZERO_COPY_ARENA_PART,
    "a connection alone can have all that it may under way"
);
const _: () = assert!(OUTGOING_BYTES_MAX >= FETCH_BYTES_MAX, "a whole fetch can wait to be sent");
const _: () = assert!(READ_PIECE_BYTES.is_multiple_of(BLOCK_BYTES), "files are read in whole blocks");
const _: () = assert!(
    RECEIVE_BUFFER_BYTES_MAX >= corelane_proto::frame::HELLO_BYTES_MAX as usize,
    "a Hello fits the receive buffer"
);
const _: () = assert!(MESSAGE_BYTES_LIMIT <= SET_BYTES_LIMIT, "a message fits into a set");
const _: () = assert!(2 * TXN_PAGE + 3 <= TXN_OPERATIONS_MAX, "a compare and a write a key fit one transaction");
const _: () = assert!(CLAIMS_A_TXN + 3 <= TXN_OPERATIONS_MAX, "a claim's steps fit one transaction");
const _: () =
    assert!(GROUP_SUBSCRIPTIONS_MAX <= PATTERNS_KEPT_MAX, "a decision about one group compiles no pattern twice");
const _: () = assert!(COMMITS_A_TXN + 5 <= TXN_OPERATIONS_MAX, "a page of commits fits one transaction");
const _: () = assert!(TARGET_BYTES_MAX + 64 * KIB <= TXN_BYTES_MAX, "a target fits one transaction");
const _: () = assert!(TARGET_CHUNK_BYTES <= REGISTRY_VALUE_BYTES_MAX, "a chunk of a target fits a value");
const _: () = assert!(REGISTRY_VALUE_BYTES_MAX < TXN_BYTES_MAX, "a transaction holds the largest value");
const _: () = assert!(FRAME_BYTES_MAX < u32::MAX as usize, "a frame's length fits its field");
const _: () = assert!(STOP_MAX.as_secs() < 10, "an orderly stop ends within ten seconds");
const _: () = assert!(
    ARENA_BYTES_MIN / FILE_READS_ARENA_PART >= 2 * READ_PIECE_BYTES,
    "a file can be read ahead from within its part of the arena"
);
const _: () = assert!(WAITS_MAX < REQUESTS_IN_FLIGHT_MAX, "waits leave room for publishes");
const _: () = assert!(WAITS_MAX < SHARD_LONG_POLLS_MAX, "one connection cannot take all the long polls of a shard");
const _: () = assert!(
    REQUEST_PROTO_BYTES_MAX - RECEIVE_BUFFER_BYTES_MAX < RECEIVE_BUFFERS_EXTRA_BYTES_MAX,
    "the largest request fits into what the buffers of a shard may be longer"
);
const _: () = assert!(
    CLAIM_PROVEN_BYTES < SET_BYTES_LIMIT && 2 * SET_BYTES_LIMIT <= RECEIVE_BUFFERS_EXTRA_BYTES_MAX,
    "two largest sets fit into what the buffers of a shard may be longer"
);
const _: () = assert!(
    OUTGOING_HEAD_BYTES_MAX < SHARD_OUTGOING_HEAD_BYTES_MAX,
    "one connection cannot take all that a shard holds to be sent"
);
const _: () = assert!(
    RECEIVE_LAG_SCARCE_MAX_S < RECEIVE_LAG_MAX_S && RECEIVE_BYTES_A_SECOND_SCARCE > RECEIVE_BYTES_A_SECOND,
    "patience is shorter where memory is scarce"
);
const _: () = assert!(PEER_TIMEOUT_MIN.as_millis() < PEER_TIMEOUT_MAX.as_millis(), "the time-out of peers has a range");
const _: () =
    assert!(READ_HELD_MAX.as_secs() < STUCK_AFTER_S as u64, "others wait for less than a stuck reader may keep");
const _: () = assert!(RECEIVE_BUFFER_BYTES_MIN <= RECEIVE_BUFFER_BYTES_MAX, "a receive buffer grows");
const _: () = assert!(STOP_ANSWERS_MAX.as_secs() < STOP_MAX.as_secs(), "a stop has time left to flush");
const _: () = assert!(ZERO_COPY_STUCK_MAX_S < SEND_MAX_S, "patience is shorter where memory is scarce");
const _: () = assert!(STUCK_AFTER_S < SEND_MAX_S, "a stuck reader's memory comes back before it is closed");
