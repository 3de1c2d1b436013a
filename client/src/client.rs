//! The way in: a client knows the cluster's addresses and hands out producers, consumers and the admin. It is cheap to
//! clone; all clones share connections and what is known of the cluster.

use std::sync::Arc;
use std::time::Duration;

use crate::admin::Admin;
use crate::cluster::Cluster;
use crate::consumer::ConsumerBuilder;
use crate::error::CallError;
use crate::group::GroupConsumerBuilder;
use crate::net::address;
use crate::producer::ProducerBuilder;

/// The longest name that a client may give itself.
const CLIENT_NAME_BYTES_MAX: usize = 128;

/// A client of a Corelane cluster. It must be used inside a tokio runtime; see [`blocking`](crate::blocking) for
/// programs without one.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use corelane_client::{Client, Record};
/// let client = Client::builder().bootstrap("127.0.0.1:9400").build().await?;
/// let producer = client.producer().build()?;
/// let delivered = producer.send(Record::to("events").value(b"hello")).await?.await?;
/// println!("at {:?}", delivered.position);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) cluster: Arc<Cluster>,
}

/// What a [`ClientBuilder`] collects.
#[derive(Debug, Clone)]
pub(crate) struct ClientSettings {
    pub(crate) bootstrap: Vec<String>,
    pub(crate) client_name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) topic_timeout: Duration,
    pub(crate) backoff_min: Duration,
    pub(crate) backoff_max: Duration,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            bootstrap: Vec::new(),
            client_name: concat!("corelane-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(15),
            topic_timeout: Duration::from_mins(1),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(1),
        }
    }
}

impl Client {
    /// Starts to configure a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder { settings: ClientSettings::default() }
    }

    /// Starts to configure a producer.
    pub fn producer(&self) -> ProducerBuilder {
        ProducerBuilder::new(self.clone())
    }

    /// Starts to configure a consumer.
    pub fn consumer(&self) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone())
    }

    /// Starts to configure a member of a group of consumers.
    ///
    /// ```no_run
    /// # async fn example(client: corelane_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut consumer = client.group("billing").topic("orders").build()?;
    /// let first = consumer.next().await;
    /// # Ok(()) }
    /// ```
    pub fn group(&self, group: impl Into<String>) -> GroupConsumerBuilder {
        GroupConsumerBuilder::new(self.clone(), group.into())
    }

    /// The calls that manage topics and look at the cluster.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }
}

/// Configures a [`Client`].
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    settings: ClientSettings,
}

impl ClientBuilder {
    /// Adds addresses to begin with: `host:port`, several separated by commas; without a port, 9400. Any one broker of
    /// the cluster is enough, the others are learnt from it.
    pub fn bootstrap(mut self, addresses: impl AsRef<str>) -> Self {
        let addresses = addresses.as_ref().split(',').map(str::trim).filter(|address| !address.is_empty());
        self.settings.bootstrap.extend(addresses.map(str::to_owned));
        self
    }

    /// What the brokers' logs shall call this program; at most 128 bytes.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.settings.client_name = name.into();
        self
    }

    /// How long connecting may take, name resolution and greeting included (default 5 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long a call may take, retries included (default 15 s). A connection on which nothing is answered for so long
    /// is given up.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = timeout;
        self
    }

    /// How long creating, altering and deleting a topic may take, retries included (default 60 s): a topic of thousands of
    /// partitions takes its time. That a broker's disk is full is told after three seconds already.
    pub fn topic_timeout(mut self, timeout: Duration) -> Self {
        self.settings.topic_timeout = timeout;
        self
    }

    /// The shortest and the longest pause between attempts (default 20 ms and 1 s). The pause doubles with each failure;
    /// its exact length is random, so that many clients do not come back in step.
    pub fn backoff(mut self, shortest: Duration, longest: Duration) -> Self {
        self.settings.backoff_min = shortest;
        self.settings.backoff_max = longest;
        self
    }

    /// Connects to one of the addresses.
    ///
    /// # Errors
    /// [`CallError::NoBroker`] with the cause for each address when none of them is a Corelane broker that answers within
    /// the connect time-out.
    pub async fn build(mut self) -> Result<Client, CallError> {
        self.check()?;
        for address in &mut self.settings.bootstrap {
            *address = address::normalise(address)?;
        }
        let cluster = Arc::new(Cluster::new(self.settings));
        cluster.reach().await?;
        Ok(Client { cluster })
    }

    fn check(&self) -> Result<(), CallError> {
        let invalid = |field, reason: &str| Err(CallError::Invalid { field, reason: reason.to_owned() });
        let settings = &self.settings;
        if settings.bootstrap.is_empty() {
            return invalid("bootstrap", "at least one address is needed");
        }
        if settings.client_name.len() > CLIENT_NAME_BYTES_MAX {
            return invalid("client_name", "at most 128 bytes");
        }
        if [settings.connect_timeout, settings.request_timeout, settings.topic_timeout].contains(&Duration::ZERO) {
            return invalid("timeout", "must be longer than zero");
        }
        if settings.backoff_min.is_zero() || settings.backoff_max < settings.backoff_min {
            return invalid("backoff", "the shortest pause must be above zero and at most the longest");
        }
        Ok(())
    }
}
