//! The way to etcd: one client of one endpoint at a time. A request that fails makes its client suspect; the next request
//! looks for an endpoint that answers a read with a leader behind it, the next one in the list first, with the password that
//! is in its file by then. A commit is sent once, never to an endpoint that is known not to answer.
//!
//! It also remembers how far etcd had come, and refuses to go on with one that has less: whoever holds state read from
//! it must read everything again. The request whose answer shows it may have had its effect.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, Error, KvClient, ResponseHeader, WatchClient};

use super::convert::{error_of, revision_of};
use super::options::{EtcdOptions, EtcdUser};
use crate::limits::{ETCD_ANSWER_BYTES_MAX, ETCD_CONNECT_MAX, ETCD_REFUSED_PAUSE, ETCD_REQUEST_MAX};
use crate::registry::store::{Revision, Seen, StoreError, StoreResult};

/// Shared by all that ask etcd for something.
#[derive(Clone)]
pub(super) struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    endpoints: Vec<String>,
    prefix: String,
    options: ConnectOptions,
    user: Option<Mutex<EtcdUser>>,
    state: Mutex<State>,
    /// Held while an endpoint is looked for.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    current: Option<Connected>,
    /// How many were connected so far.
    connected: u64,
    /// The endpoint to try first.
    next_endpoint: usize,
    /// How the last search ended, if it found nothing.
    found_nothing: Option<(Instant, StoreError)>,
    seen: Option<Seen>,
    went_back: bool,
    /// How often etcd went back and was believed again.
    renewals: u64,
}

/// A client that answered, and its number, by which it is found suspect.
#[derive(Clone)]
pub(super) struct Connected {
    client: Arc<Client>,
    number: u64,
}

impl Connected {
    /// To watch with it.
    pub(super) fn watch_client(&self) -> WatchClient {
        self.client.watch_client().max_decoding_message_size(ETCD_ANSWER_BYTES_MAX)
    }
}

/// To read and write with it.
pub(super) fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(ETCD_ANSWER_BYTES_MAX)
}

impl Link {
    pub(super) fn new(options: EtcdOptions) -> StoreResult<Self> {
        let connect_options = options.connect_options()?;
        let EtcdOptions { endpoints, prefix, user, .. } = options;
        let user = user.map(Mutex::new);
        let (state, looking) = (Mutex::default(), tokio::sync::Mutex::default());
        Ok(Self { inner: Arc::new(Inner { endpoints, prefix, options: connect_options, user, state, looking }) })
    }

    /// Everything that may be asked for lies under this.
    pub(super) fn prefix(&self) -> &str {
        &self.inner.prefix
    }

    /// Sends a request once.
    pub(super) async fn call<T>(&self, request: impl AsyncFnOnce(Arc<Client>) -> Result<T, Error>) -> StoreResult<T> {
        let connected = self.connected().await?;
        // The library's futures are large.
        let answer = in_time(ETCD_REQUEST_MAX, Box::pin(request(Arc::clone(&connected.client)))).await;
        self.judge(&connected, answer)
    }

    /// Sends a request that changes nothing, and once more, by another connection, if the first does not answer it.
    pub(super) async fn read<T>(&self, request: impl AsyncFn(Arc<Client>) -> Result<T, Error>) -> StoreResult<T> {
        match self.call(&request).await {
            Err(StoreError::Unavailable(_) | StoreError::Refused(_)) => self.call(&request).await,
            answer => answer,
        }
    }

    /// Lets go of a client whose answer says that it may not be of use.
    pub(super) fn judge<T>(&self, connected: &Connected, answer: StoreResult<T>) -> StoreResult<T> {
        if let Err(error) = &answer
            && error.is_retryable()
            && *error != StoreError::NoSpace
        {
            let mut state = self.state();
            if state.current.as_ref().is_some_and(|current| current.number == connected.number) {
                let endpoint = &self.inner.endpoints[state.next_endpoint];
                tracing::warn!(endpoint, %error, "etcd did not do what it was asked; looking for an endpoint that does");
                state.current = None;
                state.next_endpoint = (state.next_endpoint + 1) % self.inner.endpoints.len();
            }
        }
        answer
    }

    /// A client that answered since the last failure.
    pub(super) async fn connected(&self) -> StoreResult<Connected> {
        if let Some(current) = self.current()? {
            return Ok(current);
        }
        let came = Instant::now();
        let _looking = self.inner.looking.lock().await;
        if let Some(current) = self.current()? {
            return Ok(current);
        }
        // A search that ended while this one waited has looked everywhere already; and checking a password costs etcd much.
        if let Some((ended, error)) = &self.state().found_nothing
            && (*ended >= came || (matches!(error, StoreError::Refused(_)) && ended.elapsed() < ETCD_REFUSED_PAUSE))
        {
            return Err(error.clone());
        }
        let mut last = None;
        for _ in 0..self.inner.endpoints.len() {
            match self.try_next().await {
                Err(error) if error != StoreError::WentBack => last = Some(error),
                found => return found,
            }
        }
        let error = last.expect("there is at least one endpoint");
        self.state().found_nothing = Some((Instant::now(), error.clone()));
        Err(error)
    }

    async fn try_next(&self) -> StoreResult<Connected> {
        let (place, seen) = {
            let state = self.state();
            (state.next_endpoint, state.seen)
        };
        let endpoint = &self.inner.endpoints[place];
        let options = self.connect_options();
        let probe = async {
            let client = Client::connect([endpoint], Some(options)).await?;
            let answer = kv(&client).get(self.inner.prefix.as_str(), None).await?;
            Ok((client, answer))
        };
        let found = in_time(ETCD_CONNECT_MAX + ETCD_REQUEST_MAX, Box::pin(probe)).await;
        let (client, answer) = found.map_err(|error| {
            self.state().next_endpoint = (place + 1) % self.inner.endpoints.len();
            match error {
                StoreError::Unavailable(reason) => StoreError::Unavailable(format!("{endpoint}: {reason}")),
                StoreError::Refused(reason) => StoreError::Refused(format!("{endpoint}: {reason}")),
                StoreError::Failed(reason) => StoreError::Failed(format!("{endpoint}: {reason}")),
                error => error,
            }
        })?;
        self.note(seen, answer.header())?;
        let mut state = self.state();
        state.connected += 1;
        let connected = Connected { client: Arc::new(client), number: state.connected };
        tracing::info!(endpoint, "connected to etcd");
        state.current = Some(connected.clone());
        Ok(connected)
    }

    fn connect_options(&self) -> ConnectOptions {
        let options = self.inner.options.clone();
        match &self.inner.user {
            Some(user) => user.lock().expect("nobody panics while it is held").sign_in(options),
            None => options,
        }
    }

    /// What etcd was last seen to be; to be asked before a request is sent, for [`note`](Self::note).
    pub(super) fn seen(&self) -> Option<Seen> {
        self.state().seen
    }

    /// Takes in the header of an answer that went through the cluster's leader: it cannot show less than was `before` it
    /// was asked for, unless etcd lost what it had.
    pub(super) fn note(&self, before: Option<Seen>, header: Option<&ResponseHeader>) -> StoreResult<Seen> {
        let store_id = header.map(ResponseHeader::cluster_id).unwrap_or_default();
        let now = Seen { store_id, revision: revision_of(header) };
        if before.is_some_and(|before| before.was_lost(&now)) {
            return Err(self.went_back());
        }
        let mut state = self.state();
        // Answers may overtake each other.
        let newest = state.seen.map_or(now.revision, |seen| seen.revision.max(now.revision));
        state.seen = Some(Seen { revision: newest, ..now });
        Ok(now)
    }

    /// Whether etcd still knows of a revision that was seen: one member alone may be behind, all together may not.
    pub(super) async fn confirm(&self, connected: &Connected, seen: Revision) -> StoreResult<()> {
        let mut client = kv(&connected.client);
        let answer = in_time(ETCD_REQUEST_MAX, Box::pin(client.get(self.inner.prefix.as_str(), None))).await;
        let answer = self.judge(connected, answer)?;
        if revision_of(answer.header()) < seen { Err(self.went_back()) } else { Ok(()) }
    }

    /// From now on every request is refused.
    pub(super) fn went_back(&self) -> StoreError {
        let mut state = self.state();
        if !state.went_back {
            tracing::error!(seen = ?state.seen, "etcd has less than was seen of it before: it was restored, or emptied");
        }
        (state.went_back, state.current) = (true, None);
        StoreError::WentBack
    }

    /// Believes etcd again, as it is now.
    pub(super) fn renew(&self) {
        let mut state = self.state();
        if state.went_back {
            state.renewals += 1;
            (state.went_back, state.seen) = (false, None);
        }
    }

    /// What was read while this number was another holds no more.
    pub(super) fn renewals(&self) -> u64 {
        self.state().renewals
    }

    fn current(&self) -> StoreResult<Option<Connected>> {
        let state = self.state();
        if state.went_back { Err(StoreError::WentBack) } else { Ok(state.current.clone()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().expect("nobody panics while it is held")
    }
}

/// The client library waits for ever while no endpoint can be connected.
pub(super) async fn in_time<T>(limit: Duration, request: impl Future<Output = Result<T, Error>>) -> StoreResult<T> {
    match tokio::time::timeout(limit, request).await {
        Ok(answer) => answer.map_err(|error| error_of(&error)),
        Err(_) => Err(StoreError::Unavailable(format!("no answer within {limit:?}"))),
    }
}
