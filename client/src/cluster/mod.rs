//! What all clones of a client share: the addresses, what is known of the cluster, and the connections for calls. Calls
//! end within the request time-out, retries included.

mod metadata;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corelane_proto::frame::{Method, Retry, Status};
use corelane_proto::pb;
use prost::Message;

use crate::client::ClientSettings;
use crate::error::{CallError, ConnectError};
use crate::net::backoff::Backoff;
use crate::net::calls::CallConnection;
use crate::net::connect::{self, Greeting, Link};

pub(crate) use metadata::{Metadata, PartitionPlace, Place, TopicPlaces};

/// A topic may be unknown to the broker that is asked for so long after its creation.
const UNKNOWN_TOPIC_PATIENCE: Duration = Duration::from_millis(500);

/// How long an answer with metadata, which every broker gives from memory, is waited for before another broker is asked.
/// The next one gets twice as long, lest brokers that are only slow be asked again and again.
const METADATA_PATIENCE: Duration = Duration::from_secs(1);

/// A broker without room may be making some, so a call is repeated for so long; a disk that is full for longer waits for
/// somebody to be told.
const NO_SPACE_PATIENCE: Duration = Duration::from_secs(3);

/// Entries of a long list that one answer tells; the next ones come with the next page.
pub(crate) const PAGE_LIMIT: u32 = 2_000;

/// Whether a call may be sent again when it is not known whether the first one was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It changes nothing, or the same thing again.
    Always,
    /// Only when the broker said that it did not do it, or when it was not sent.
    IfNotDone,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) settings: ClientSettings,
    state: Mutex<State>,
    /// Held while metadata is fetched, so that many callers with the same question ask once.
    asking: tokio::sync::Mutex<()>,
    /// Held while a connection for calls is made, for the same reason.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    metadata: Metadata,
    /// Connections for calls, by the place asked for; none: any broker.
    connections: HashMap<Option<Place>, CallConnection>,
    /// An address at which each broker was found: it may be reachable there and not where it says.
    found_at: BTreeMap<u32, Arc<str>>,
}

impl Cluster {
    pub(crate) fn new(settings: ClientSettings) -> Self {
        Self {
            settings,
            state: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.settings.backoff_min, self.settings.backoff_max)
    }

    /// A greeting to a shard of a broker; sessions fill the rest in.
    pub(crate) fn greeting(&self, place: Option<Place>) -> Greeting {
        Greeting {
            client_name: self.settings.client_name.clone(),
            cluster_id: self.state().metadata.cluster_id.clone(),
            broker_id: place.map(|place| place.broker_id),
            shard: place.map(|place| place.shard),
            ..Greeting::default()
        }
    }

    // ---- Connecting --------------------------------------------------------------------------------------------

    /// Connects to any broker: where one was found before, then the bootstrap addresses, then what the cluster told,
    /// each in random order, so that no broker gets all clients and none is tried first for ever. All of it within the
    /// connect time-out, which the addresses share.
    pub(crate) async fn connect_any(&self, timeout: Duration) -> Result<Link, CallError> {
        let addresses = {
            let state = self.state();
            let mut found: Vec<String> = state.found_at.values().map(ToString::to_string).collect();
            let mut bootstrap = self.settings.bootstrap.clone();
            let mut told: Vec<String> = state.metadata.brokers.values().cloned().collect();
            for addresses in [&mut found, &mut bootstrap, &mut told] {
                fastrand::shuffle(addresses);
            }
            distinct(found.into_iter().chain(bootstrap).chain(told))
        };
        let connected = self.connect_first(addresses, &self.greeting(None), timeout).await;
        connected.map_err(|causes| CallError::NoBroker { causes })
    }

    /// Connects to any broker; to `avoid` only when no other answers.
    pub(crate) async fn connect_other(&self, avoid: Option<u32>, timeout: Duration) -> Result<Link, CallError> {
        let addresses = {
            let state = self.state();
            let places = |broker_id: &u32| {
                let found = state.found_at.get(broker_id).map(ToString::to_string);
                found.into_iter().chain(state.metadata.brokers.get(broker_id).cloned())
            };
            let avoided: Vec<String> = avoid.iter().flat_map(places).collect();
            let known = state.found_at.keys().chain(state.metadata.brokers.keys()).flat_map(places);
            let mut others: Vec<String> = distinct(known.chain(self.settings.bootstrap.iter().cloned()));
            others.retain(|address| !avoided.contains(address));
            fastrand::shuffle(&mut others);
            others.extend(avoided);
            distinct(others.into_iter())
        };
        let connected = self.connect_first(addresses, &self.greeting(None), timeout).await;
        connected.map_err(|causes| CallError::NoBroker { causes })
    }

    /// Connects to a shard of a broker, with a greeting of the caller's.
    pub(crate) async fn connect_place(
        &self,
        place: Place,
        greeting: &Greeting,
        timeout: Duration,
    ) -> Result<Link, CallError> {
        let addresses = {
            let state = self.state();
            let found = state.found_at.get(&place.broker_id).map(ToString::to_string);
            distinct(found.into_iter().chain(state.metadata.brokers.get(&place.broker_id).cloned()))
        };
        let connected = self.connect_first(addresses, greeting, timeout).await;
        connected.map_err(|causes| CallError::Unreachable { broker_id: place.broker_id, causes })
    }

    /// Connects to the first of the addresses that answers as it should; else why each of them does not.
    async fn connect_first(
        &self,
        addresses: Vec<String>,
        greeting: &Greeting,
        timeout: Duration,
    ) -> Result<Link, Vec<ConnectError>> {
        let deadline = Instant::now() + timeout.min(self.settings.connect_timeout);
        let mut causes: Vec<ConnectError> = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let share = remaining / (addresses.len() - index) as u32;
            match connect::connect(address, greeting, share).await {
                Ok(link) => {
                    self.state().found_at.insert(link.hello.broker_id, link.address.clone());
                    return Ok(link);
                }
                Err(cause) => causes.push(cause),
            }
        }
        Err(causes)
    }

    async fn call_connection(&self, place: Option<Place>, timeout: Duration) -> Result<CallConnection, CallError> {
        if let Some(connection) = self.live_connection(place) {
            return Ok(connection);
        }
        let deadline = Instant::now() + timeout;
        let _one_at_a_time = tokio::time::timeout(timeout, self.connecting.lock()).await.map_err(|_| {
            CallError::TimedOut { address: self.settings.bootstrap.join(","), method: "Hello", after: timeout }
        })?;
        if let Some(connection) = self.live_connection(place) {
            return Ok(connection);
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        let link = match place {
            None => self.connect_any(remaining).await?,
            Some(place) => self.connect_place(place, &self.greeting(Some(place)), remaining).await?,
        };
        let connection = CallConnection::start(link);
        self.state().connections.insert(place, connection.clone());
        Ok(connection)
    }

    fn live_connection(&self, place: Option<Place>) -> Option<CallConnection> {
        let mut state = self.state();
        let connection = state.connections.get(&place)?;
        if connection.is_broken() {
            state.connections.remove(&place);
            return None;
        }
        Some(connection.clone())
    }

    /// Makes the first connection, so that wrong addresses are known at once.
    pub(crate) async fn reach(&self) -> Result<(), CallError> {
        self.call_connection(None, self.settings.connect_timeout).await.map(|_| ())
    }

    // ---- Calls -------------------------------------------------------------------------------------------------

    /// One attempt, without retries. A connection on which nothing was answered in time is not used again.
    async fn call_once<Q: Message, R: Message + Default>(
        &self,
        place: Option<Place>,
        method: Method,
        request: &Q,
        timeout: Duration,
    ) -> Result<R, CallError> {
        let deadline = Instant::now() + timeout;
        let connection = self.call_connection(place, timeout).await?;
        let result = connection.call(method, request, deadline.saturating_duration_since(Instant::now())).await;
        if matches!(result, Err(CallError::TimedOut { .. } | CallError::Lost { .. })) {
            self.state().connections.remove(&place);
        }
        result
    }

    /// A call that any broker answers.
    pub(crate) async fn call<Q: Message, R: Message + Default>(
        &self,
        method: Method,
        request: &Q,
        repeat: Repeat,
    ) -> Result<R, CallError> {
        let timeout = match method {
            Method::CreateTopic | Method::AlterTopic | Method::DeleteTopic | Method::AddPartitions => {
                self.settings.topic_timeout
            }
            _ => self.settings.request_timeout,
        };
        let began = Instant::now();
        let deadline = began + timeout;
        let mut backoff = self.backoff();
        // What may be repeated leaves time for other brokers when this one is silent.
        let patience_max = if repeat == Repeat::Always { timeout / 3 } else { timeout };
        let mut patience = if method == Method::Metadata { METADATA_PATIENCE.min(patience_max) } else { patience_max };
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let error = match self.call_once(None, method, request, remaining.min(patience)).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            if matches!(error, CallError::TimedOut { .. } | CallError::NoBroker { .. }) {
                patience = (2 * patience).min(patience_max);
            }
            let again = match &error {
                CallError::NoBroker { .. } | CallError::Refused { .. } => error.is_retryable(),
                CallError::Lost { .. } | CallError::TimedOut { .. } => repeat == Repeat::Always,
                _ => false,
            };
            let pause = backoff.pause();
            let is_full = error.refusal().is_some_and(|refusal| refusal.status == Status::NoSpace);
            let deadline = if is_full { deadline.min(began + NO_SPACE_PATIENCE) } else { deadline };
            if !again || Instant::now() + pause >= deadline {
                return Err(error);
            }
            if matches!(&error, CallError::Refused { refusal, .. } if refusal.status.retry() == Retry::Elsewhere) {
                self.state().connections.remove(&None);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// A call that this broker answers, whichever of its shards is asked. Not repeated.
    pub(crate) async fn call_broker<Q: Message, R: Message + Default>(
        &self,
        broker_id: u32,
        method: Method,
        request: &Q,
    ) -> Result<R, CallError> {
        let place = Some(Place { broker_id, shard: 0 });
        self.call_once(place, method, request, self.settings.request_timeout).await
    }

    /// A call that the shard of a partition answers. Follows the partition where it is served, and asks for fresh
    /// metadata when its place or epoch is not what was known.
    pub(crate) async fn call_partition<Q: Message, R: Message + Default>(
        &self,
        topic: &str,
        partition: u32,
        method: Method,
        request: impl Fn(&TopicPlaces, &PartitionPlace) -> Q,
    ) -> Result<R, CallError> {
        self.call_partition_for(self.settings.request_timeout, topic, partition, method, request).await
    }

    /// As [`Cluster::call_partition`]; what may pass is tried again for as long as `patience`.
    pub(crate) async fn call_partition_for<Q: Message, R: Message + Default>(
        &self,
        patience: Duration,
        topic: &str,
        partition: u32,
        method: Method,
        request: impl Fn(&TopicPlaces, &PartitionPlace) -> Q,
    ) -> Result<R, CallError> {
        let began = Instant::now();
        let deadline = began + self.settings.request_timeout;
        let last_attempt = deadline.min(began + patience);
        let mut backoff = self.backoff();
        let mut places = self.topic(topic).await?;
        loop {
            let at = places.partition(partition)?;
            let remaining = deadline.saturating_duration_since(Instant::now());
            let error = match self.call_once(Some(at.place), method, &request(&places, at), remaining).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let stale_topic = error.refusal().is_some_and(|refusal| refusal.status == Status::UnknownTopic);
            let pause = backoff.pause();
            if !(error.is_retryable() || stale_topic) || Instant::now() + pause >= last_attempt {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            let asked = Instant::now();
            let fresh = self.refresh(&[topic.to_owned()], asked).await.and_then(|()| self.known(topic));
            places = match fresh {
                // The topic is what it was, so the shard's answer stands.
                Ok(fresh) if stale_topic && fresh.topic_id == places.topic_id => return Err(error),
                Ok(fresh) => fresh,
                Err(error) if !error.is_retryable() => return Err(error),
                // What kept the first attempt from succeeding says more than this one.
                Err(_) => places,
            };
        }
    }

    // ---- Metadata ----------------------------------------------------------------------------------------------

    /// A topic, from the cache or else from a broker; a topic that is not known yet is asked for again for a moment.
    pub(crate) async fn topic(&self, topic: &str) -> Result<Arc<TopicPlaces>, CallError> {
        if let Ok(known) = self.known(topic) {
            return Ok(known);
        }
        let patience = Instant::now() + UNKNOWN_TOPIC_PATIENCE;
        let mut backoff = self.backoff();
        loop {
            self.refresh(&[topic.to_owned()], Instant::now()).await?;
            let known = self.known(topic);
            let pause = backoff.pause();
            if known.is_ok() || Instant::now() + pause > patience {
                return known;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// What is known of a topic, without asking.
    pub(crate) fn known(&self, topic: &str) -> Result<Arc<TopicPlaces>, CallError> {
        let known = self.state().metadata.topics.get(topic).cloned();
        known.ok_or_else(|| CallError::UnknownTopic { topic: topic.to_owned() })
    }

    /// Asks for these topics (none: all) unless an answer came after `asked`, because somebody else asked meanwhile.
    pub(crate) async fn refresh(&self, topics: &[String], asked: Instant) -> Result<(), CallError> {
        let _one_at_a_time = self.asking.lock().await;
        let is_fresh = |name: &String| self.known(name).is_ok_and(|known| known.fetched > asked);
        if !topics.is_empty() && topics.iter().all(is_fresh) {
            return Ok(());
        }
        let answer = self.metadata(topics).await?;
        self.state().metadata.merge(answer, topics, Instant::now());
        Ok(())
    }

    /// Asks for these topics (none: all), page by page.
    pub(crate) async fn metadata(&self, topics: &[String]) -> Result<pb::MetadataResponse, CallError> {
        self.pages_of_metadata(None, topics).await
    }

    /// Asks this broker for all topics. Not repeated.
    pub(crate) async fn metadata_of(&self, broker_id: u32) -> Result<pb::MetadataResponse, CallError> {
        self.pages_of_metadata(Some(broker_id), &[]).await
    }

    async fn pages_of_metadata(
        &self,
        broker_id: Option<u32>,
        topics: &[String],
    ) -> Result<pb::MetadataResponse, CallError> {
        let mut request = pb::MetadataRequest { topics: topics.to_vec(), limit: PAGE_LIMIT, after: String::new() };
        let mut told = Vec::new();
        loop {
            let mut answer: pb::MetadataResponse = match broker_id {
                None => self.call(Method::Metadata, &request, Repeat::Always).await?,
                Some(broker_id) => self.call_broker(broker_id, Method::Metadata, &request).await?,
            };
            told.append(&mut answer.topics);
            match told.last() {
                Some(last) if answer.more && last.name > request.after => request.after.clone_from(&last.name),
                _ => return Ok(pb::MetadataResponse { topics: told, ..answer }),
            }
        }
    }

    /// Remembers what a `NOT_HERE` said.
    pub(crate) fn correct(&self, places: &TopicPlaces, partition: u32, place: Place) {
        self.state().metadata.correct(&places.name, places.topic_id, partition, place);
    }

    /// Forgets a topic, so that the next look asks.
    pub(crate) fn forget(&self, topic: &str) {
        self.state().metadata.topics.remove(topic);
    }

    /// Where a broker is, for messages.
    pub(crate) fn address_of(&self, broker_id: u32) -> String {
        let state = self.state();
        let found = state.found_at.get(&broker_id).map(ToString::to_string);
        found
            .or_else(|| state.metadata.brokers.get(&broker_id).cloned())
            .unwrap_or_else(|| format!("broker {broker_id}"))
    }
}

fn distinct(addresses: impl Iterator<Item = String>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for address in addresses {
        if !distinct.contains(&address) {
            distinct.push(address);
        }
    }
    distinct
}
