//! A group while everything around it goes wrong: members, brokers and etcd are killed, paused and cut off at random, by a
//! seed. `CORELANE_SEED=n` runs one round by that seed (what happens when is the seed's, how the processes take it is
//! not), `CORELANE_MINUTES=n` so many minutes of rounds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use corelane_client::Client;
use corelane_testkit::{Cluster, Direction, Rule, full};

use super::world::{
    Manner, Member, Members, Publisher, assert_holds, catch_up, client_with_topic, describe, read_topic, settle,
};

const BROKERS: u32 = 3;
const PARTITIONS: u32 = 12;
const MEMBERS_MIN: usize = 2;
const MEMBERS_MAX: usize = 5;
const LEASE: Duration = Duration::from_secs(2);
const MANNER: Manner = Manner { lease: LEASE, hold: Duration::from_millis(2), commit_every: 40 };

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    KillMember,
    PauseMember,
    LeaveMember,
    StartMember,
    KillBroker,
    PauseBroker,
    CutBrokerFromEtcd,
    CutBrokerFromClients,
    MuteBroker,
    PauseEtcd,
    KillEtcd,
}

use Fault::{
    CutBrokerFromClients, CutBrokerFromEtcd, KillBroker, KillEtcd, KillMember, LeaveMember, MuteBroker, PauseBroker,
    PauseEtcd, PauseMember, StartMember,
};

/// By how often they come.
const FAULTS: [Fault; 17] = [
    KillMember,
    KillMember,
    PauseMember,
    PauseMember,
    PauseMember,
    LeaveMember,
    LeaveMember,
    StartMember,
    StartMember,
    StartMember,
    KillBroker,
    PauseBroker,
    CutBrokerFromEtcd,
    CutBrokerFromClients,
    MuteBroker,
    PauseEtcd,
    KillEtcd,
];

/// What ends a fault.
#[derive(Clone, Copy, Debug)]
enum Mend {
    ResumeMember(usize),
    RestartBroker(u32),
    ResumeBroker(u32),
    HealBroker(u32),
    ResumeEtcd,
    RestartEtcd,
}

struct Chaos {
    cluster: Cluster,
    members: Members,
    live: Vec<Member>,
    /// Told to leave; killed in the end if they have not.
    leaving: Vec<Member>,
    chance: fastrand::Rng,
    mends: Vec<(Instant, Mend)>,
    counts: BTreeMap<Fault, usize>,
}

impl Chaos {
    fn later(&mut self, leases: &[f64], mend: Mend) {
        let leases = self.chance.choice(leases).copied().unwrap_or_default();
        self.mends.push((Instant::now() + LEASE.mul_f64(leases), mend));
    }

    /// A broker with which nothing is wrong yet, so that one fault at a time is on each.
    fn sound_broker(&mut self) -> Option<u32> {
        let id = self.chance.u32(1..=BROKERS);
        let has_fault = |mend: &Mend| match mend {
            Mend::RestartBroker(other) | Mend::ResumeBroker(other) | Mend::HealBroker(other) => *other == id,
            _ => false,
        };
        (!self.mends.iter().any(|(_, mend)| has_fault(mend))).then_some(id)
    }

    fn some_member(&mut self) -> Option<usize> {
        (self.live.len() > MEMBERS_MIN).then(|| self.chance.usize(..self.live.len()))
    }

    /// Whether it happened.
    fn happen(&mut self, fault: Fault) -> bool {
        let happened = match fault {
            KillMember | LeaveMember => self.some_member().is_some_and(|index| {
                self.end_member(index, fault);
                true
            }),
            PauseMember => {
                self.pause_member();
                true
            }
            StartMember => {
                let has_room = self.live.len() < MEMBERS_MAX;
                if has_room {
                    self.live.push(self.members.start());
                }
                has_room
            }
            PauseEtcd | KillEtcd => self.etcd(fault),
            _ => self.sound_broker().is_some_and(|id| {
                self.broker(id, fault);
                true
            }),
        };
        *self.counts.entry(fault).or_default() += usize::from(happened);
        happened
    }

    fn end_member(&mut self, index: usize, fault: Fault) {
        let mut member = self.live.swap_remove(index);
        if fault == KillMember {
            member.process.kill9();
        } else {
            // It may be paused at that moment: then it leaves when it goes on, if its lease lasts.
            member.process.terminate();
            self.leaving.push(member);
        }
    }

    fn pause_member(&mut self) {
        let index = self.chance.usize(..self.live.len());
        self.live[index].process.pause();
        let number = self.live[index].number;
        self.later(&[0.2, 0.5, 1.1, 1.5, 3.0], Mend::ResumeMember(number));
    }

    fn broker(&mut self, id: u32, fault: Fault) {
        match fault {
            KillBroker => {
                self.cluster.broker_mut(id).kill9();
                self.later(&[0.1, 1.0, 2.0], Mend::RestartBroker(id));
            }
            PauseBroker => {
                self.cluster.broker_mut(id).pause();
                self.later(&[0.3, 1.0, 2.0], Mend::ResumeBroker(id));
            }
            CutBrokerFromEtcd => {
                self.cluster.cut_from_etcd(id);
                self.later(&[0.5, 1.5, 3.0], Mend::HealBroker(id));
            }
            CutBrokerFromClients => {
                self.cluster.front(id).refuse(true);
                self.cluster.front(id).cut();
                self.later(&[0.5, 1.5, 3.0], Mend::HealBroker(id));
            }
            _ => {
                // What is said waits; nobody notices but by a time-out.
                self.cluster.front(id).set(Direction::ToClient, Rule::Hold);
                self.later(&[0.3, 1.0, 2.0], Mend::HealBroker(id));
            }
        }
    }

    fn etcd(&mut self, fault: Fault) -> bool {
        if self.mends.iter().any(|(_, mend)| matches!(mend, Mend::ResumeEtcd | Mend::RestartEtcd)) {
            return false;
        }
        if fault == PauseEtcd {
            self.cluster.etcd().pause();
            self.later(&[0.2, 0.5, 1.5], Mend::ResumeEtcd);
        } else {
            self.cluster.etcd_mut().kill9();
            self.later(&[0.1, 0.5], Mend::RestartEtcd);
        }
        true
    }

    fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::ResumeMember(number) => {
                for member in self.live.iter_mut().chain(&mut self.leaving).filter(|member| member.number == number) {
                    member.process.resume();
                }
            }
            Mend::RestartBroker(id) => self.cluster.broker_mut(id).restart(),
            Mend::ResumeBroker(id) => self.cluster.broker_mut(id).resume(),
            Mend::HealBroker(id) => {
                self.cluster.way(id).heal();
                self.cluster.front(id).heal();
            }
            Mend::ResumeEtcd => self.cluster.etcd().resume(),
            Mend::RestartEtcd => self.cluster.etcd_mut().restart(),
        }
    }

    fn mend_what_is_due(&mut self, now: Option<Instant>) {
        let due = self.mends.extract_if(.., |(at, _)| now.is_none_or(|now| *at <= now));
        for (_, mend) in due.collect::<Vec<_>>() {
            self.mend(mend);
        }
    }

    async fn rage(&mut self, length: Duration) {
        let until = Instant::now() + length;
        while Instant::now() < until {
            let fault = self.chance.choice(&FAULTS).copied().expect("there are some");
            // One that cannot happen now takes no time.
            let pause =
                if self.happen(fault) { Duration::from_millis(self.chance.u64(50..900)) } else { Duration::ZERO };
            let next = Instant::now() + pause;
            while Instant::now() < next {
                self.mend_what_is_due(Some(Instant::now()));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        self.mend_what_is_due(None);
    }
}

/// Looks at the group as an operator would, and notes where committed positions went back.
async fn look(client: Client) {
    let mut committed: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
    loop {
        for partition in describe(&client).await.into_iter().flat_map(|group| group.partitions) {
            let Some(now) = partition.committed else { continue };
            let before = committed.insert(partition.partition, now).unwrap_or_default();
            assert!(before <= now, "the position of {} went back from {before:?} to {now:?}", partition.partition);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn round(cluster: Cluster, seed: u64, length: Duration) {
    println!("CORELANE_SEED={seed}, {length:?}");
    let client = client_with_topic(&cluster, PARTITIONS).await;
    let members = Members::new(cluster.bootstrap(), MANNER);
    let publisher = Publisher::start(&client, PARTITIONS, Duration::from_millis(20));
    let chance = fastrand::Rng::with_seed(seed);
    let (live, mends, leaving) = (Vec::new(), Vec::new(), Vec::new());
    let mut chaos = Chaos { cluster, members, live, leaving, chance, mends, counts: BTreeMap::new() };
    for _ in 0..MEMBERS_MAX - 1 {
        chaos.live.push(chaos.members.start());
    }
    settle(&client, PARTITIONS, MEMBERS_MAX - 1).await;
    let looking = tokio::spawn(look(client.clone()));
    chaos.rage(length).await;
    let settled = settle(&client, PARTITIONS, chaos.live.len()).await;
    let published = publisher.stop().await;
    catch_up(&client).await;
    assert!(!looking.is_finished(), "{:?}", looking.await);
    looking.abort();

    let topic = read_topic(&client).await;
    assert_holds(&topic, &published);
    let history = chaos.members.history();
    let wrong = history.check(&topic);
    assert!(
        wrong.is_empty(),
        "seed {seed}: {} promises were broken:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    let figures = history.figures(&topic);
    println!("{:?}\n{figures:?}, settled {settled:?} after the last fault", chaos.counts);
    if let Some((length, partition, others)) = history.longest_pause() {
        println!(
            "longest pause {length:?}, of partition {partition}; its owner got {others} messages of others meanwhile"
        );
    }
    // How much moves in a few seconds is chance; that something did must be so, or nothing was tried.
    assert!(figures.ownerships > PARTITIONS as usize && figures.published > 0, "{figures:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_gets_everything_and_no_partition_has_two_owners_whatever_is_killed_paused_or_cut_off() {
    let test = "a_group_gets_everything_and_no_partition_has_two_owners_whatever_is_killed_paused_or_cut_off";
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let length = Duration::from_secs(if full() { 60 } else { 12 });
    let until = Instant::now() + Duration::from_mins(number("CORELANE_MINUTES").unwrap_or(0));
    let mut seed = number("CORELANE_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    loop {
        let Some(cluster) = super::start(test, BROKERS as usize) else { return };
        round(cluster, seed, length).await;
        if Instant::now() >= until {
            return;
        }
        seed += 1;
    }
}
