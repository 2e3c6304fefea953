//! The configuration service in etcd.
//!
//! ```text
//! /remora/CLUSTER/GROUP/group          what all nodes agree on: secrets, ring's length, term
//! /remora/CLUSTER/GROUP/size           how many members it is to have
//! /remora/CLUSTER/GROUP/configuration  the group's entry: the latest configuration, as JSON
//! /remora/CLUSTER/GROUP/nodes/NUMBER   where a node is; the key belongs to a lease of etcd's
//! ```
//!
//! The primary renews its lease by writing the entry again: etcd's own leases last whole seconds,
//! some seconds at least. They only say who is there: a node whose key is gone is lost. Each
//! request of the protocol is one transaction, whose conditions are those of
//! [`Request`]: the revision of the entry.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Event as Change, EventType,
    GetOptions, GetResponse, Identity, KeyValue, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    TlsOptions, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchStream,
};
use remora::connection::token::Token;
use remora_store::log::Position;
use remora_store::replica::{Configuration, Entry, Event, NoConfiguration, NodeId, Request};
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};

use crate::address::Address;
use crate::coordinator::{Coordinator, News};
use crate::documents::{self, AGREED, Agreed, Document, Key, SIZE, Size, VERSION, Written, key_of};
use crate::epochs::Epochs;
use crate::etcd_words::words_of;
use crate::founding::{first_configuration, next_configuration};
use crate::history::{EpochChange, with_change};

/// How long etcd may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long a node is taken to be there without a word of it, in seconds. etcd may give more.
const PRESENCE_S: i64 = 5;
/// How often etcd is told that a node is there.
const PRESENT_EVERY: Duration = Duration::from_millis(1000);
/// What a renewal's compare-and-swap is tried with: the revision that is known, and then, where the
/// answer to an earlier one was lost, the one that is there.
const TRIES: usize = 2;
/// What is said when etcd no longer has what it had. Nothing tells what else it has forgotten.
const GONE: &str = "the group’s entry is gone, so etcd has lost its data: restore it from a backup \
                    of etcd, or end all nodes, and begin again from their directories \
                    (--restore), or with empty ones";

/// What a node with a directory is told where etcd knows nothing of its group.
const LOST: &str = "etcd knows nothing of the group that the directory is of: is that its etcd, \
                    and are the names right? If etcd has lost its data, restore a backup of it, or \
                    begin the group again from the directories of most of its nodes: start each \
                    with --restore";

/// Where etcd is, and which group is meant.
#[derive(Clone)]
pub struct EtcdGroup {
    /// etcd's members, as URLs: all with `http:`, or all with `https:`.
    pub endpoints: Vec<String>,
    /// A user and a password, where etcd asks for them.
    pub user: Option<(String, String)>,
    /// How this node and etcd know each other, where the URLs are `https:`.
    pub tls: Option<EtcdTls>,
    /// The group's name: that of its cluster, a slash, and its own.
    pub name: String,
}

/// How etcd and its clients know each other. All certificates and keys are in PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// The certificates of the authorities that may have signed etcd's.
    pub ca: Vec<u8>,
    /// The own certificate and its key, where etcd asks for them.
    pub own: Option<(Vec<u8>, Vec<u8>)>,
}

/// (Passwords and keys are not shown.)
impl std::fmt::Debug for EtcdGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let EtcdGroup { endpoints, name, .. } = self;
        f.debug_struct("EtcdGroup")
            .field("endpoints", endpoints)
            .field("name", name)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").finish_non_exhaustive()
    }
}

impl EtcdGroup {
    /// A group in an etcd that trusts all that reach it.
    #[must_use]
    pub fn new(endpoints: Vec<String>, name: &str) -> EtcdGroup {
        EtcdGroup { endpoints, user: None, tls: None, name: name.to_owned() }
    }
}

/// How a node takes part in a group of etcd's.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// The group.
    pub group: EtcdGroup,
    /// How long others wait for a sign of the primary before they take over, for the node that
    /// comes first; in whole milliseconds.
    pub lease: Duration,
    /// How many members the group has, for the node that comes first: it waits for the others.
    pub size: u8,
    /// The ring's bytes, for the node that comes first.
    pub ring_bytes: u64,
    /// What the node has of the group.
    pub origin: Origin,
}

/// What a node has of its group when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing: it may be the first one of a new group.
    New,
    /// A directory, of a group with this salt. etcd has to know the group.
    Directory(u64),
    /// The same; if etcd knows nothing of the group, it begins again from its nodes' directories,
    /// once most of its last members are there.
    Restores(u64),
    /// The same; the group begins again without most of its last members, too, once as many nodes
    /// with directories are there as [`EtcdOptions::size`] says. What none of them has is lost.
    RestoresAnyway(u64),
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
    /// How long nodes wait for a sign of the primary.
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
    /// The nodes that are there, and where they are.
    pub nodes: BTreeMap<NodeId, Address>,
}

/// That this node is there: a lease of etcd's, to which its key belongs.
struct Presence {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    /// When etcd last answered.
    heard: Instant,
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
    /// How long a request of the protocol may take.
    patience: Duration,
    presence: Option<Presence>,
    /// When etcd was last told that this node is there, or when that was tried.
    told: Option<Instant>,
    watch: Option<WatchStream>,
    latest: Option<Entry>,
    /// What the latest entry says of how the group came there.
    changes: Vec<EpochChange>,
    /// The group has begun, as this node has seen.
    was_founded: bool,
    /// The epochs of its entries, and that of this node's log.
    epochs: Epochs,
    /// Only nodes that have a part of its log can begin it.
    is_restored: bool,
    /// So many of them are enough, whichever they are.
    enough: Option<usize>,
    /// Why it does not begin yet, as was last told.
    waits: Option<String>,
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
    if let Some(EtcdTls { ca, own }) = &group.tls {
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
        if let Some((certificate, key)) = own {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        how = how.with_tls(tls);
    }
    let client = Client::connect(&group.endpoints, Some(how)).await?;
    Ok((client, format!("/remora/{}/", group.name)))
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
                Some(Key::Configuration) => {
                    let written = Written::read(pair.value());
                    overview.configuration = written.map(|written| written.configuration);
                }
                Some(Key::Node(node)) => {
                    let address = Address::read(pair.value());
                    overview.nodes.extend(address.map(|address| (node, address)));
                }
                Some(Key::Agreed | Key::Size) | None => {}
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
                size: options.size.into(),
                patience: PATIENCE,
                presence: None,
                told: None,
                watch: None,
                latest: None,
                changes: Vec::new(),
                was_founded: false,
                epochs: Epochs::default(),
                is_restored: false,
                enough: matches!(options.origin, Origin::RestoresAnyway(_))
                    .then_some(options.size.into()),
                waits: None,
                nodes: BTreeMap::new(),
                news: VecDeque::new(),
            };
            let agreed = inner.agree(options).await?;
            inner.is_restored = agreed.is_restored;
            // So that a member of etcd's that hangs does not cost the lease.
            inner.patience = PATIENCE.min(Duration::from_millis(agreed.lease_ms) / 2);
            Ok((inner, agreed))
        });
        let (inner, agreed) = joined.map_err(|error| failed(words_of(&error)))?;
        let token = Token::new(agreed.token);
        let terms = Terms {
            salt: agreed.salt,
            token: token.ok_or_else(|| failed("the group's token is zero".to_owned()))?,
            ring_bytes: agreed.ring_bytes,
            lease: Duration::from_millis(agreed.lease_ms),
        };
        Ok((Etcd { runtime, inner }, terms))
    }

    /// Says where the others will reach the node.
    #[must_use]
    pub fn announce(mut self, address: Address) -> Etcd {
        let last = address.last.map(Position::from_number);
        self.inner.epochs.hear(last.map_or(0, Position::epoch));
        self.inner.address = Some(address);
        self
    }
}

impl Coordinator for Etcd {
    fn submit(&mut self, request: Request) -> Result<(), String> {
        let inner = &mut self.inner;
        let submitted = self.runtime.block_on(inner.submit(request));
        if submitted.is_err() {
            // What became of it is asked for anew.
            inner.watch = None;
        }
        submitted.map_err(|error| words_of(&error))
    }

    fn poll(&mut self, timeout: Duration) -> Result<Option<News>, String> {
        let inner = &mut self.inner;
        if let Some(news) = inner.news.pop_front() {
            return Ok(Some(news));
        }
        let heard = self.runtime.block_on(async {
            inner.in_time(Inner::be_present).await?;
            let next = tokio::time::timeout(timeout, inner.hear());
            // Only waiting may be cut short: a request that is dropped half-way is lost.
            let has_changed = next.await.unwrap_or(Ok(false))?;
            inner.look_for_loss()?;
            if has_changed { inner.found().await } else { Ok(()) }
        });
        if heard.is_err() {
            // What was missed is asked for anew.
            inner.watch = None;
        }
        heard.map_err(|error| words_of(&error))?;
        Ok(inner.news.pop_front())
    }

    fn depart(&mut self) {
        let Some(presence) = self.inner.presence.take() else { return };
        let lease = presence.keeper.id();
        let revoke = async |inner: &mut Inner| inner.client.lease_revoke(lease).await.map(drop);
        if let Err(error) = self.runtime.block_on(self.inner.in_time(revoke)) {
            tracing::debug!("etcd is not told of the end: {}", words_of(&error));
        }
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
    async fn agree(&mut self, options: &EtcdOptions) -> Answer<Agreed> {
        if !matches!(options.origin, Origin::Directory(_)) {
            self.draw(options).await?;
        }
        let there = self.client.get(self.key(AGREED), None).await?;
        let refused = etcd_client::Error::WatchError;
        let Some(written) = there.kvs().first() else { return Err(refused(LOST.to_owned())) };
        Agreed::understand(written.value()).map_err(refused)
    }

    /// Draws what all nodes agree on, unless that is there.
    async fn draw(&mut self, options: &EtcdOptions) -> Answer<()> {
        let EtcdOptions { ring_bytes, lease, size, origin, .. } = *options;
        let mut random = [0; 24];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| etcd_client::Error::IoError(error.into()))?;
        let (salt, token) = random.split_first_chunk().expect("24 bytes");
        let (salt, is_restored) = match origin {
            Origin::New => (u64::from_le_bytes(*salt), false),
            Origin::Directory(salt) | Origin::Restores(salt) | Origin::RestoresAnyway(salt) => {
                (salt, true)
            }
        };
        let token = token.try_into().expect("16 bytes");
        let lease_ms = lease.as_millis().max(1) as u64;
        let own = Agreed { version: VERSION, salt, token, ring_bytes, lease_ms, is_restored };
        let key = self.key(AGREED);
        let value = serde_json::to_vec(&own).expect("numbers");
        let is_new = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(key, value, None);
        let put_size = TxnOp::put(self.key(SIZE), size.to_string(), None);
        self.client.txn(Txn::new().when([is_new]).and_then([put, put_size])).await.map(drop)
    }

    /// Tells etcd that this node is there, and where, when it is time to.
    async fn be_present(&mut self) -> Answer<()> {
        if self.told.is_some_and(|told| told.elapsed() < PRESENT_EVERY) {
            return Ok(());
        }
        self.told = Some(Instant::now());
        let silent = |presence: &Presence| presence.heard.elapsed().as_secs() >= PRESENCE_S as u64;
        if self.presence.as_ref().is_none_or(silent) {
            self.presence = None;
            self.presence = Some(self.arrive().await?);
        }
        let Some(presence) = &mut self.presence else { return Ok(()) };
        let told = presence.keeper.keep_alive().await;
        if told.is_err() {
            self.presence = None;
        }
        told
    }

    /// Writes where this node is, for as long as it keeps its presence alive.
    async fn arrive(&mut self) -> Answer<Presence> {
        let granted = self.client.lease_grant(PRESENCE_S, None).await?;
        if let Some(address) = &self.address {
            let value = serde_json::to_vec(address).expect("texts");
            let how = PutOptions::new().with_lease(granted.id());
            self.client.put(self.key_of_node(self.me), value, Some(how)).await?;
        }
        let (keeper, answers) = self.client.lease_keep_alive(granted.id()).await?;
        Ok(Presence { keeper, answers, heard: Instant::now() })
    }

    async fn submit(&mut self, request: Request) -> Answer<()> {
        let is_look = request == Request::Look;
        if self.watch.is_none() {
            self.in_time(Inner::begin_watch).await?;
        }
        self.in_time(async |inner| inner.carry_out(request).await).await?;
        self.look_for_loss()?;
        if is_look { self.found().await } else { Ok(()) }
    }

    /// Has etcd lost what this node has seen there?
    fn look_for_loss(&self) -> Answer<()> {
        let words = match self.was_founded && self.latest.is_none() {
            true => Some(GONE.to_owned()),
            false => self.epochs.trouble(),
        };
        words.map_or(Ok(()), |words| Err(etcd_client::Error::WatchError(words)))
    }

    /// Gives up what takes longer than a request may: the lease is renewed by the same thread.
    async fn in_time(&mut self, act: impl AsyncFnOnce(&mut Inner) -> Answer<()>) -> Answer<()> {
        let patience = self.patience;
        let done = tokio::time::timeout(patience, act(self)).await;
        done.unwrap_or_else(|_| Err(late(patience)))
    }

    async fn carry_out(&mut self, request: Request) -> Answer<()> {
        match request {
            Request::Look => self.look().await,
            Request::Renew { epoch, sent_ns } => self.renew(epoch, sent_ns).await,
            Request::Resign { epoch } => self.amend(epoch, |entry| entry.is_free = true).await,
            Request::Propose { next, over } => self.propose(next, over).await,
            Request::Establish { epoch } => {
                let establish = |entry: &mut Entry| {
                    entry.configuration.established = entry.configuration.members.clone();
                };
                self.amend(epoch, establish).await
            }
        }
    }

    /// Learns how things are, and hears of every change from there on.
    async fn begin_watch(&mut self) -> Answer<()> {
        // A member that was started again knows nobody who has shown a password before.
        self.client.refresh_token().await?;
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
            self.tell();
        }
        let from = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
        self.watch = Some(self.client.watch(self.prefix.clone(), Some(from)).await?);
        Ok(())
    }

    /// Tells this node how things are.
    fn tell(&mut self) {
        // (What is older than what this node has is not the group's any more.)
        if !self.epochs.are_others() {
            self.news.push_back(News::Event(Event::Latest(self.latest.clone())));
        }
    }

    /// Takes note of a key as it is now.
    fn note(&mut self, pair: &KeyValue) -> Answer<()> {
        match key_below(&self.prefix, pair) {
            Some(Key::Configuration) => {
                let revision = pair.mod_revision() as u64;
                // What comes by the watch may be older than what was looked at.
                if self.latest.as_ref().is_some_and(|latest| latest.revision > revision) {
                    return Ok(());
                }
                let written = Written::read(pair.value())
                    .ok_or_else(|| unreadable("the group's entry (its key `configuration`)"))?;
                self.keep(written, revision);
                self.tell();
            }
            // (One that cannot be read is not there: it must not stop the others.)
            Some(Key::Node(node)) => match Address::read(pair.value()) {
                Some(address) => {
                    self.nodes.insert(node, address.clone());
                    self.news.push_back(News::Address(node, Some(address)));
                }
                None => tracing::debug!("the address of {node} in etcd is not as expected"),
            },
            Some(Key::Size) => {
                let size = Size::read(pair.value())
                    .ok_or_else(|| unreadable("the group's size (its key `size`)"))?;
                self.size = size.0.into();
            }
            Some(Key::Agreed) | None => {}
        }
        Ok(())
    }

    /// This is the latest entry.
    fn keep(&mut self, written: Written, revision: u64) {
        let Written { configuration, is_free, changes } = written;
        self.epochs.see(configuration.epoch, configuration.primary);
        self.latest = Some(Entry { configuration, revision, is_free });
        self.changes = changes;
        self.was_founded = true;
    }

    /// Waits for the next word of etcd, and takes note of it: whether the group has changed.
    async fn hear(&mut self) -> Answer<bool> {
        let (Some(watch), Some(presence)) = (&mut self.watch, &mut self.presence) else {
            // The next request begins both anew.
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
            answer = presence.answers.message() => {
                if matches!(&answer, Ok(Some(answer)) if answer.ttl() > 0) {
                    presence.heard = Instant::now();
                } else {
                    // The next request gets another lease.
                    self.presence = None;
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
            if node == self.me {
                // It was taken for lost.
                self.presence = None;
            }
        }
        Ok(())
    }

    /// Looks at the entry, and tells this node of it in any case: that it is still the same says
    /// something, too.
    async fn look(&mut self) -> Answer<()> {
        let there = self.client.get(self.key("configuration"), None).await?;
        self.see(&there)
    }

    fn see(&mut self, there: &GetResponse) -> Answer<()> {
        self.latest = None;
        self.epochs.see_none();
        match there.kvs().first() {
            Some(pair) => self.note(pair),
            None => {
                self.tell();
                Ok(())
            }
        }
    }

    /// Makes the group's first configuration, if this node is to; but not if it has seen the group
    /// before, since etcd has then lost what it had.
    async fn found(&mut self) -> Answer<()> {
        if self.was_founded {
            return Ok(());
        }
        let invalid = |error: NoConfiguration| etcd_client::Error::InvalidArgs(error.to_string());
        let first = match self.is_restored {
            true => self.next_configuration(),
            false => first_configuration(&self.nodes, self.size).map_err(invalid)?,
        };
        let Some(first) = first.filter(|first| first.primary == self.me) else { return Ok(()) };
        if self.replace(0, Entry { configuration: first, revision: 0, is_free: false }).await? {
            self.tell();
        }
        Ok(())
    }

    /// With which configuration the group begins again, if enough of its nodes are there; if they
    /// are not, says which have to come.
    fn next_configuration(&mut self) -> Option<Configuration> {
        match next_configuration(&self.nodes, self.enough) {
            Ok(next) => Some(next),
            Err(words) => {
                if self.waits.as_ref() != Some(&words) {
                    self.waits = Some(words.clone());
                    self.news.push_back(News::Waits(words));
                }
                None
            }
        }
    }

    /// Puts the entry in its own place, and so gives it another revision.
    async fn renew(&mut self, epoch: u32, sent_ns: u64) -> Answer<()> {
        for _ in 0..TRIES {
            let is_its = |entry: &&Entry| self.is_mine(entry, epoch) && !entry.is_free;
            let Some(entry) = self.latest.as_ref().filter(is_its).cloned() else { break };
            if self.replace(entry.revision, entry).await? {
                self.news.push_back(News::Event(Event::Lease { epoch, sent_ns }));
                self.tell();
                return Ok(());
            }
        }
        self.look().await
    }

    /// Writes a primary's word into its entry, if its epoch is the latest and the word is news.
    async fn amend(&mut self, epoch: u32, change: impl Fn(&mut Entry)) -> Answer<()> {
        for _ in 0..TRIES {
            let is_its = |entry: &&Entry| self.is_mine(entry, epoch);
            let Some(mut entry) = self.latest.as_ref().filter(is_its).cloned() else { break };
            change(&mut entry);
            if self.latest.as_ref() == Some(&entry) {
                break;
            }
            if self.replace(entry.revision, entry).await? {
                self.tell();
                return Ok(());
            }
        }
        self.look().await
    }

    fn is_mine(&self, entry: &Entry, epoch: u32) -> bool {
        (entry.configuration.primary, entry.configuration.epoch) == (self.me, epoch)
    }

    async fn propose(&mut self, next: Configuration, over: u64) -> Answer<()> {
        let epoch = next.epoch;
        if let Some(revision) = self.revision_before(&next, over) {
            let entry = Entry { configuration: next, revision, is_free: false };
            if self.replace(revision, entry).await? {
                self.tell();
                return Ok(());
            }
        }
        // Its proposer may have missed what it lost to.
        self.news.push_back(News::Event(Event::Refused { epoch }));
        self.look().await
    }

    /// The revision in whose place this configuration may come, 0 for none; `None` if it cannot
    /// be the next one.
    fn revision_before(&self, next: &Configuration, over: u64) -> Option<u64> {
        let Some(Entry { configuration: latest, revision, .. }) = &self.latest else {
            return (next.epoch == 1 && next.primary == self.me).then_some(0);
        };
        let follows = next.epoch == latest.epoch + 1 && next.established == latest.established;
        let before = if latest.primary == self.me { *revision } else { over };
        (follows && next.primary == self.me).then_some(before)
    }

    /// Writes the entry in the place of a revision, 0 for none; whether that was the latest. If
    /// not, the latest is known now.
    async fn replace(&mut self, revision: u64, next: Entry) -> Answer<bool> {
        let key = self.key("configuration");
        let Entry { configuration, is_free, .. } = next;
        let latest = self.latest.as_ref();
        let is_new = latest.is_none_or(|it| it.configuration.epoch < configuration.epoch);
        let changes = match is_new {
            true => with_change(&self.changes, latest, &configuration),
            false => self.changes.clone(),
        };
        let written = Written { configuration, is_free, changes };
        let value = serde_json::to_vec(&written).expect("numbers");
        let is_latest = Compare::mod_revision(key.clone(), CompareOp::Equal, revision as i64);
        let put = TxnOp::put(key.clone(), value, None);
        let look = TxnOp::get(key, None);
        let txn = Txn::new().when([is_latest]).and_then([put]).or_else([look]);
        let done = self.client.txn(txn).await?;
        if done.succeeded() {
            let revision = done.header().map_or(0, |header| header.revision() as u64);
            self.keep(written, revision);
        } else if let Some(TxnOpResponse::Get(there)) = done.op_responses().first() {
            self.see(there)?;
        }
        Ok(done.succeeded())
    }
}

fn key_below(prefix: &str, pair: &KeyValue) -> Option<Key> {
    key_of(pair.key_str().ok()?.strip_prefix(prefix)?)
}

fn late(patience: Duration) -> etcd_client::Error {
    etcd_client::Error::WatchError(format!("no answer within {patience:?}"))
}

fn unreadable(what: &str) -> etcd_client::Error {
    etcd_client::Error::WatchError(documents::unreadable(what))
}
