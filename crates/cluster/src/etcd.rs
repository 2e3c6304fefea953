//! The configuration service in etcd.
//!
//! ```text
//! /remora/NAME/group            what all nodes agree on: secrets, the ring's length
//! /remora/NAME/configuration    the latest configuration, as JSON
//! /remora/NAME/nodes/NUMBER     where a node is; the key belongs to the node's lease
//! ```
//!
//! A node holds a lease as long as its key is there. Each request of the protocol is one
//! transaction, whose conditions are those of [`Request`](remora_store::replica::Request): that the
//! configuration is still the one that the asker knows, that its primary's key is gone, that the
//! asker's key is there and of its present lease.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Event as Change, EventType, GetOptions, KeyValue,
    LeaseKeepAliveStream, LeaseKeeper, PutOptions, Txn, TxnOp, WatchOptions, WatchStream,
};
use remora::connection::token::Token;
use remora_store::replica::{Configuration, Event, NodeId, Request};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};

use crate::address::Address;
use crate::coordinator::{Coordinator, News};

/// How long etcd may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where etcd is, and which group is meant.
#[derive(Clone, Debug)]
pub struct EtcdGroup {
    /// etcd's members, as URLs.
    pub endpoints: Vec<String>,
    /// A user and a password, where etcd asks for them.
    pub user: Option<(String, String)>,
    /// The group's name: that of its cluster, a slash, and its own.
    pub name: String,
}

/// How a node takes part in a group of etcd's.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// The group.
    pub group: EtcdGroup,
    /// For how long a lease holds. etcd counts in whole seconds, and may give more.
    pub lease: Duration,
    /// How many members the group begins with: whoever comes first waits for the others.
    pub size: usize,
    /// The ring's bytes, for the node that comes first.
    pub ring_bytes: u64,
}

/// What all nodes of a group have in common. The node that comes first draws it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Agreed {
    salt: u64,
    token: [u8; 16],
    ring_bytes: u64,
}

/// What a node needs to know of its group, as etcd has it: see
/// [`GroupOptions`](crate::GroupOptions).
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// What the group's checksums begin with.
    pub salt: u64,
    /// What nodes show each other.
    pub token: Token,
    /// The ring's bytes.
    pub ring_bytes: u64,
    /// For how long etcd gives leases.
    pub lease: Duration,
}

/// etcd cannot be used.
#[derive(Debug, Error)]
#[error("etcd at {endpoints} cannot be used for {what}: {reason}")]
pub struct EtcdError {
    /// Where.
    pub endpoints: String,
    /// What for.
    pub what: &'static str,
    /// Why, in words.
    pub reason: String,
}

/// What a group looks like in etcd, for people.
#[derive(Clone, Debug)]
pub struct Overview {
    /// The latest configuration.
    pub configuration: Option<Configuration>,
    /// The nodes that hold a lease, and where they are.
    pub nodes: BTreeMap<NodeId, Address>,
}

/// A lease of this node's.
struct HeldLease {
    id: i64,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    /// When the renewals were sent that were not answered yet.
    sent: VecDeque<u64>,
}

/// A node's way to etcd.
pub struct Etcd {
    runtime: Runtime,
    inner: Inner,
}

struct Inner {
    client: Client,
    prefix: String,
    me: NodeId,
    address: Option<Address>,
    size: usize,
    ttl_s: i64,
    held: Option<HeldLease>,
    watch: Option<WatchStream>,
    /// The latest configuration, and the revision that it was written in.
    latest: Option<(Configuration, i64)>,
    nodes: BTreeMap<NodeId, Address>,
    news: VecDeque<News>,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("prefix", &self.inner.prefix).finish_non_exhaustive()
    }
}

pub(crate) type Answer<T> = Result<T, etcd_client::Error>;

/// Connects, and answers the client and the prefix of the group's keys.
pub(crate) async fn client_of(group: &EtcdGroup) -> Answer<(Client, String)> {
    let mut how = ConnectOptions::new().with_timeout(PATIENCE).with_connect_timeout(PATIENCE);
    if let Some((name, password)) = &group.user {
        how = how.with_user(name, password);
    }
    let client = Client::connect(&group.endpoints, Some(how)).await?;
    Ok((client, format!("/remora/{}/", group.name)))
}

/// An error as people read it.
pub(crate) fn words_of(error: &etcd_client::Error) -> String {
    match error {
        etcd_client::Error::GRpcStatus(status) if status.message() == "tcp connect error" => {
            "nobody answers there: is it running, and is that its address?".to_owned()
        }
        etcd_client::Error::GRpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    }
}

pub(crate) fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Asks what etcd has of a group.
///
/// # Errors
/// See [`EtcdError`].
pub fn overview(group: &EtcdGroup) -> Result<Overview, EtcdError> {
    let failed = |reason: String| EtcdError {
        endpoints: group.endpoints.join(", "),
        what: "looking at the group",
        reason,
    };
    let runtime = runtime().map_err(|error| failed(error.to_string()))?;
    let asked = runtime.block_on(async {
        let (mut client, prefix) = client_of(group).await?;
        let all = client.get(prefix.clone(), Some(GetOptions::new().with_prefix())).await?;
        let mut overview = Overview { configuration: None, nodes: BTreeMap::new() };
        for pair in all.kvs() {
            match key_below(&prefix, pair) {
                Some(Key::Configuration) => overview.configuration = parse(pair),
                Some(Key::Node(node)) => {
                    overview.nodes.extend(parse::<Address>(pair).map(|address| (node, address)));
                }
                None => {}
            }
        }
        Ok(overview)
    });
    asked.map_err(|error| failed(words_of(&error)))
}

impl Etcd {
    /// Connects as the node `me`, and learns or draws what the group agrees on. Others hear of the
    /// node when it is announced.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn connect(options: &EtcdOptions, me: NodeId) -> Result<(Etcd, Terms), EtcdError> {
        let failed = |reason: String| EtcdError {
            endpoints: options.group.endpoints.join(", "),
            what: "joining the group",
            reason,
        };
        let runtime = runtime().map_err(|error| failed(error.to_string()))?;
        let joined = runtime.block_on(async {
            let (client, prefix) = client_of(&options.group).await?;
            let mut inner = Inner {
                client,
                prefix,
                me,
                address: None,
                size: options.size,
                ttl_s: options.lease.as_millis().div_ceil(1000).max(1) as i64,
                held: None,
                watch: None,
                latest: None,
                nodes: BTreeMap::new(),
                news: VecDeque::new(),
            };
            let agreed = inner.agree(options.ring_bytes).await?;
            let granted = inner.client.lease_grant(inner.ttl_s, None).await?;
            inner.ttl_s = granted.ttl().max(inner.ttl_s);
            inner.client.lease_revoke(granted.id()).await?;
            Ok((inner, agreed))
        });
        let (inner, agreed) = joined.map_err(|error| failed(words_of(&error)))?;
        let token = Token::new(agreed.token);
        let terms = Terms {
            salt: agreed.salt,
            token: token.ok_or_else(|| failed("the group's token is zero".to_owned()))?,
            ring_bytes: agreed.ring_bytes,
            lease: Duration::from_secs(inner.ttl_s as u64),
        };
        Ok((Etcd { runtime, inner }, terms))
    }

    /// Says where the others will reach the node, from its first lease on.
    #[must_use]
    pub fn announce(mut self, address: Address) -> Etcd {
        self.inner.address = Some(address);
        self
    }
}

impl Coordinator for Etcd {
    fn submit(&mut self, request: Request) -> Result<(), String> {
        let inner = &mut self.inner;
        self.runtime.block_on(inner.submit(request)).map_err(|error| words_of(&error))
    }

    fn poll(&mut self, timeout: Duration) -> Result<Option<News>, String> {
        let inner = &mut self.inner;
        if let Some(news) = inner.news.pop_front() {
            return Ok(Some(news));
        }
        let heard = self.runtime.block_on(async {
            let next = tokio::time::timeout(timeout, inner.hear());
            // Only waiting may be cut short: a request that is dropped half-way is lost.
            let has_changed = next.await.unwrap_or(Ok(false))?;
            if has_changed { inner.found().await } else { Ok(()) }
        });
        if heard.is_err() {
            // What was missed is asked for anew.
            inner.watch = None;
        }
        heard.map_err(|error| words_of(&error))?;
        Ok(inner.news.pop_front())
    }
}

impl Inner {
    fn key(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    fn key_of_node(&self, node: NodeId) -> String {
        self.key(&format!("nodes/{}", node.0))
    }

    /// What all nodes agree on; drawn if nobody has been here.
    async fn agree(&mut self, ring_bytes: u64) -> Answer<Agreed> {
        let mut random = [0; 24];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| etcd_client::Error::IoError(error.into()))?;
        let (salt, token) = random.split_first_chunk().expect("24 bytes");
        let mut own = Agreed { salt: u64::from_le_bytes(*salt), token: [0; 16], ring_bytes };
        own.token.copy_from_slice(token);
        let key = self.key("group");
        let value = serde_json::to_vec(&own).expect("numbers");
        let is_new = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(key.clone(), value, None);
        self.client.txn(Txn::new().when([is_new]).and_then([put])).await?;
        let there = self.client.get(key, None).await?;
        let agreed = there.kvs().first().and_then(parse);
        agreed.ok_or_else(|| unreadable("what the group agrees on"))
    }

    /// Gets a new lease, and writes the node's key under it.
    async fn grant(&mut self) -> Answer<()> {
        self.held = None;
        let granted = self.client.lease_grant(self.ttl_s, None).await?;
        let (id, key) = (granted.id(), self.key_of_node(self.me));
        self.ttl_s = granted.ttl().max(self.ttl_s);
        let (keeper, answers) = self.client.lease_keep_alive(id).await?;
        let how = PutOptions::new().with_lease(id);
        if let Some(address) = &self.address {
            let value = serde_json::to_vec(address).expect("texts");
            self.client.put(key, value, Some(how)).await?;
        }
        self.held = Some(HeldLease { id, keeper, answers, sent: VecDeque::new() });
        Ok(())
    }

    async fn submit(&mut self, request: Request) -> Answer<()> {
        match request {
            Request::KeepAlive { sent_ns } => self.keep_alive(sent_ns).await,
            Request::Resign => {
                if let Some(held) = self.held.take() {
                    self.client.lease_revoke(held.id).await?;
                }
                Ok(())
            }
            Request::Propose(next) => self.propose(next).await,
            Request::Establish { epoch } => self.establish(epoch).await,
        }
    }

    async fn keep_alive(&mut self, sent_ns: u64) -> Answer<()> {
        if self.held.is_none() {
            self.grant().await?;
            // The latest configuration comes before the lease counts.
            self.watch = None;
        }
        if self.watch.is_none() {
            self.begin_watch().await?;
        }
        let Some(held) = &mut self.held else { return Ok(()) };
        held.sent.push_back(sent_ns);
        let sent = held.keeper.keep_alive().await;
        if sent.is_err() {
            self.held = None;
        }
        sent
    }

    /// Learns how things are, and hears of every change from there on.
    async fn begin_watch(&mut self) -> Answer<()> {
        let all = GetOptions::new().with_prefix();
        let there = self.client.get(self.prefix.clone(), Some(all)).await?;
        let revision = there.header().map_or(0, |header| header.revision());
        let before = std::mem::take(&mut self.nodes);
        self.latest = None;
        for pair in there.kvs() {
            self.note(pair)?;
        }
        for node in before.into_keys().filter(|node| !self.nodes.contains_key(node)) {
            self.news.push_back(News::Address(node, None));
        }
        if self.latest.is_none() {
            self.news.push_back(News::Event(Event::Configuration(None)));
        }
        self.look_for_vacancy();
        let from = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
        self.watch = Some(self.client.watch(self.prefix.clone(), Some(from)).await?);
        self.found().await
    }

    /// Takes note of a key as it is now.
    fn note(&mut self, pair: &KeyValue) -> Answer<()> {
        match key_below(&self.prefix, pair) {
            Some(Key::Configuration) => {
                let latest: Configuration =
                    parse(pair).ok_or_else(|| unreadable("the group's configuration"))?;
                self.news.push_back(News::Event(Event::Configuration(Some(latest.clone()))));
                self.latest = Some((latest, pair.mod_revision()));
            }
            Some(Key::Node(node)) => {
                let address =
                    parse::<Address>(pair).ok_or_else(|| unreadable("a node's address"))?;
                self.nodes.insert(node, address);
                self.news.push_back(News::Address(node, Some(address)));
            }
            None => {}
        }
        Ok(())
    }

    /// Waits for the next word of etcd, and takes note of it: whether the group has changed.
    async fn hear(&mut self) -> Answer<bool> {
        let (Some(watch), Some(held)) = (&mut self.watch, &mut self.held) else {
            // The next renewal begins both anew.
            return std::future::pending().await;
        };
        tokio::select! {
            changes = watch.message() => {
                let changes = changes?.filter(|changes| !changes.canceled());
                let changes = changes.ok_or_else(|| unreadable("the end of a watch"))?;
                for change in changes.events() {
                    self.take(change)?;
                }
                Ok(true)
            }
            answer = held.answers.message() => {
                let is_renewed = matches!(&answer, Ok(Some(answer)) if answer.ttl() > 0);
                match held.sent.pop_front().filter(|_| is_renewed) {
                    Some(sent_ns) => {
                        // Nobody has taken over since the configuration was looked up, under
                        // this lease: this node's key was there all the time.
                        let epoch = self.latest.as_ref().map_or(0, |(latest, _)| latest.epoch);
                        let lease = Event::Lease { epoch, sent_ns };
                        self.news.push_back(News::Event(lease));
                    }
                    // The lease has ended: the next renewal gets another one.
                    None => self.held = None,
                }
                answer.map(|_| false)
            }
        }
    }

    fn take(&mut self, change: &Change) -> Answer<()> {
        let Some(pair) = change.kv() else { return Ok(()) };
        if change.event_type() == EventType::Put {
            return self.note(pair);
        }
        if let Some(Key::Node(node)) = key_below(&self.prefix, pair) {
            self.nodes.remove(&node);
            self.news.push_back(News::Address(node, None));
            self.look_for_vacancy();
        }
        Ok(())
    }

    /// Says so if the primary holds no lease.
    fn look_for_vacancy(&mut self) {
        if let Some((latest, _)) = &self.latest
            && latest.primary != self.me
            && !self.nodes.contains_key(&latest.primary)
        {
            self.news.push_back(News::Event(Event::Vacant { epoch: latest.epoch }));
        }
    }

    /// A new group's first configuration is made by the node with the lowest number, when all are
    /// there.
    async fn found(&mut self) -> Answer<()> {
        let is_first = self.nodes.first_key_value().is_some_and(|(node, _)| *node == self.me);
        if self.latest.is_some() || !is_first || self.nodes.len() < self.size {
            return Ok(());
        }
        let members = self.nodes.keys().copied().take(self.size).collect();
        match Configuration::first(self.me, members) {
            Ok(first) => self.propose(first).await,
            Err(error) => Err(etcd_client::Error::InvalidArgs(error.to_string())),
        }
    }

    async fn propose(&mut self, next: Configuration) -> Answer<()> {
        let epoch = next.epoch;
        let Some(mut conditions) = self.conditions(&next) else {
            return self.refuse(epoch).await;
        };
        let (me, lease) = (self.key_of_node(self.me), self.held.as_ref().map_or(0, |held| held.id));
        conditions.push(Compare::create_revision(me.clone(), CompareOp::Greater, 0));
        conditions.push(Compare::lease(me, CompareOp::Equal, lease));
        if self.replace(conditions, &next).await? { Ok(()) } else { self.refuse(epoch).await }
    }

    /// What must hold for this configuration to be the next; `None` if it cannot be.
    fn conditions(&self, next: &Configuration) -> Option<Vec<Compare>> {
        if next.primary != self.me {
            return None;
        }
        let key = self.key("configuration");
        let Some((latest, revision)) = &self.latest else {
            let is_new = Compare::create_revision(key, CompareOp::Equal, 0);
            return (next.epoch == 1).then(|| vec![is_new]);
        };
        if next.epoch != latest.epoch + 1 || next.established != latest.established {
            return None;
        }
        let mut conditions = vec![Compare::mod_revision(key, CompareOp::Equal, *revision)];
        if latest.primary != self.me {
            let primary = self.key_of_node(latest.primary);
            conditions.push(Compare::create_revision(primary, CompareOp::Equal, 0));
        }
        Some(conditions)
    }

    /// Puts a configuration in the place of the latest; whether the conditions held.
    async fn replace(&mut self, when: Vec<Compare>, next: &Configuration) -> Answer<bool> {
        let value = serde_json::to_vec(next).expect("numbers");
        let put = TxnOp::put(self.key("configuration"), value, None);
        let done = self.client.txn(Txn::new().when(when).and_then([put])).await?;
        Ok(done.succeeded())
    }

    /// A proposal is not the next configuration. Its proposer may have missed what it lost to.
    async fn refuse(&mut self, epoch: u32) -> Answer<()> {
        self.news.push_back(News::Event(Event::Refused { epoch }));
        self.begin_watch_again().await
    }

    async fn begin_watch_again(&mut self) -> Answer<()> {
        self.watch = None;
        Box::pin(self.begin_watch()).await
    }

    async fn establish(&mut self, epoch: u32) -> Answer<()> {
        let Some((latest, revision)) = &self.latest else { return Ok(()) };
        if latest.epoch != epoch {
            return Ok(());
        }
        let mut next = latest.clone();
        next.established = next.members.clone();
        let key = self.key("configuration");
        let when = vec![Compare::mod_revision(key, CompareOp::Equal, *revision)];
        if self.replace(when, &next).await? { Ok(()) } else { self.begin_watch_again().await }
    }
}

/// A key of a group.
pub(crate) enum Key {
    Configuration,
    Node(NodeId),
}

/// What a key of a group is for; `rest` is what follows the group's prefix.
pub(crate) fn key_of(rest: &str) -> Option<Key> {
    match rest {
        "configuration" => Some(Key::Configuration),
        rest => {
            let number = rest.strip_prefix("nodes/")?;
            number.parse().ok().map(|number| Key::Node(NodeId(number)))
        }
    }
}

fn key_below(prefix: &str, pair: &KeyValue) -> Option<Key> {
    key_of(pair.key_str().ok()?.strip_prefix(prefix)?)
}

pub(crate) fn parse<T: serde::de::DeserializeOwned>(pair: &KeyValue) -> Option<T> {
    serde_json::from_slice(pair.value()).ok()
}

fn unreadable(what: &str) -> etcd_client::Error {
    etcd_client::Error::WatchError(format!(
        "{what} is not as expected: was it written by another version?"
    ))
}
