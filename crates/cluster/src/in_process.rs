//! The configuration service in this process, for groups whose nodes are all here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remora_store::replica::{
    Configuration, ConfigurationService, Event, NodeId, Registry, Request,
};

use crate::address::Address;
use crate::coordinator::{Coordinator, News};
use crate::map::{Atlas, GroupView, MapService, SlotMap};

/// The configuration service of one group, as a value that its nodes share. It has no copy:
/// it ends with the process.
#[derive(Clone, Debug)]
pub struct InProcess {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    news: BTreeMap<NodeId, VecDeque<News>>,
    addresses: BTreeMap<NodeId, Address>,
    /// The latest way of each node: the one before may end after it has begun.
    ways: BTreeMap<NodeId, u64>,
    is_away: bool,
    founding: Option<u32>,
}

#[derive(Debug)]
struct Member {
    service: InProcess,
    me: NodeId,
    /// Which of the node's ways it is.
    way: u64,
}

impl InProcess {
    /// A service with the group's first configuration.
    #[must_use]
    pub fn new(first: Configuration) -> InProcess {
        let registry = Registry::new(Some(first));
        let inner = Inner {
            registry,
            news: BTreeMap::new(),
            addresses: BTreeMap::new(),
            ways: BTreeMap::new(),
            is_away: false,
            founding: None,
        };
        InProcess { inner: Arc::new(Mutex::new(inner)) }
    }

    /// From now on it answers nobody, or answers again.
    pub fn set_away(&self, is_away: bool) {
        self.lock().is_away = is_away;
    }

    /// Which group it is: see [`GroupOptions::founding`](crate::GroupOptions::founding). Others are
    /// not told before.
    pub fn set_founding(&self, founding: u32) {
        self.lock().founding = Some(founding);
    }

    /// The way of a node to it, and to the others. One that the node had before is of no more use.
    #[must_use]
    pub fn coordinator(&self, me: NodeId, address: Address) -> Box<dyn Coordinator> {
        let mut inner = self.lock();
        inner.addresses.insert(me, address.clone());
        let known = inner.addresses.iter().map(|(node, at)| News::Address(*node, Some(at.clone())));
        let known = known.collect();
        for news in inner.news.values_mut() {
            news.push_back(News::Address(me, Some(address.clone())));
        }
        inner.news.insert(me, known);
        let way = inner.ways.entry(me).or_default();
        *way += 1;
        Box::new(Member { way: *way, service: self.clone(), me })
    }

    /// The latest configuration.
    #[must_use]
    pub fn latest(&self) -> Option<Configuration> {
        self.lock().registry.latest().cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The map of a cluster whose groups are all in this process.
#[derive(Clone, Debug, Default)]
pub struct InProcessMap {
    inner: Arc<Mutex<(Atlas, BTreeMap<String, InProcess>)>>,
}

impl InProcessMap {
    /// A map for these groups.
    #[must_use]
    pub fn new(groups: BTreeMap<String, InProcess>) -> InProcessMap {
        InProcessMap { inner: Arc::new(Mutex::new((Atlas::default(), groups))) }
    }

    /// A group begins anew: all of its nodes are lost, and this is the service of others.
    pub fn begin_anew(&self, name: &str, service: InProcess) {
        self.lock().1.insert(name.to_owned(), service);
    }

    fn lock(&self) -> MutexGuard<'_, (Atlas, BTreeMap<String, InProcess>)> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MapService for InProcessMap {
    fn look(&mut self) -> Result<Atlas, String> {
        let held = self.lock();
        let view = |(name, service): (&String, &InProcess)| {
            let inner = service.lock();
            let configuration = inner.registry.latest().cloned();
            let (founding, nodes) = (inner.founding, inner.addresses.clone());
            (name.clone(), GroupView { founding, configuration, nodes, ..GroupView::default() })
        };
        let groups = held.1.iter().map(view).collect();
        Ok(Atlas { groups, ..held.0.clone() })
    }

    fn replace(&mut self, revision: i64, next: &SlotMap) -> Result<bool, String> {
        let (atlas, _) = &mut *self.lock();
        if atlas.revision != revision {
            return Ok(false);
        }
        atlas.slots = Some(next.clone());
        atlas.revision += 1;
        Ok(true)
    }
}

impl Inner {
    /// Hands out what the registry says.
    fn hand_out(&mut self) {
        while let Some((node, event)) = self.registry.poll() {
            self.tell(node, event);
        }
    }

    fn tell(&mut self, node: NodeId, event: Event) {
        if let Some(news) = self.news.get_mut(&node) {
            news.push_back(News::Event(event));
        }
    }
}

/// A node that ends has no address any more.
impl Drop for Member {
    fn drop(&mut self) {
        let mut inner = self.service.lock();
        if inner.ways[&self.me] != self.way {
            return;
        }
        inner.addresses.remove(&self.me);
        inner.news.remove(&self.me);
        for news in inner.news.values_mut() {
            news.push_back(News::Address(self.me, None));
        }
    }
}

impl Member {
    /// The service, if it answers this way.
    fn reach(&self) -> Result<MutexGuard<'_, Inner>, String> {
        let inner = self.service.lock();
        if inner.is_away {
            return Err("the service is away".to_owned());
        }
        if inner.ways[&self.me] != self.way {
            return Err(format!("{} has come by another way", self.me));
        }
        Ok(inner)
    }

    fn next(&self) -> Result<Option<News>, String> {
        let mut inner = self.reach()?;
        inner.hand_out();
        Ok(inner.news.get_mut(&self.me).and_then(VecDeque::pop_front))
    }
}

impl Coordinator for Member {
    fn submit(&mut self, request: Request) -> Result<(), String> {
        let mut inner = self.reach()?;
        inner.registry.submit(self.me, request);
        inner.hand_out();
        Ok(())
    }

    fn poll(&mut self, timeout: Duration) -> Result<Option<News>, String> {
        if let Some(news) = self.next()? {
            return Ok(Some(news));
        }
        std::thread::sleep(timeout);
        self.next()
    }
}
