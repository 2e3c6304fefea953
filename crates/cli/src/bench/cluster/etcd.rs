//! etcd as a store: as many clients as a group has, who put one key after another.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result};
use etcd_client::Client;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::load::{Work, key};
use crate::store::cluster::trial::Etcd;

/// etcd's three members.
pub(super) struct Members {
    etcd: Etcd,
    runtime: Runtime,
}

impl Members {
    pub(super) fn start() -> Result<Members> {
        let mut etcd = Etcd::start_members(3)?;
        etcd.wait(&AtomicBool::new(false))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Members { etcd, runtime })
    }

    /// Thousands of puts a second, about so many in all: so many at a time on each connection to
    /// the leader, which needs not send them on.
    pub(super) fn rate(
        &self,
        work: Work,
        connections: usize,
        in_flight: usize,
        requests: usize,
    ) -> Result<f64> {
        self.runtime.block_on(async {
            let leader = self.leader().await?;
            let (clients, mut puts) = (connections * in_flight, JoinSet::new());
            let each = requests.div_ceil(clients);
            let mut connected = Vec::with_capacity(connections);
            for _ in 0..connections {
                connected.push(Client::connect([&leader], None).await?);
            }
            let start = Instant::now();
            for number in 0..clients {
                let client = connected[number % connections].clone();
                puts.spawn(put(client, number * each, each, work));
            }
            while let Some(done) = puts.join_next().await {
                done.context("a client of etcd has ended")??;
            }
            Ok((each * clients) as f64 / start.elapsed().as_secs_f64() / 1e3)
        })
    }

    /// Where the leader is.
    async fn leader(&self) -> Result<String> {
        for url in &self.etcd.urls {
            let mut client = Client::connect([url], None).await?;
            // One that is about to begin is not the leader.
            let Ok(status) = client.status().await else { continue };
            let is_leader =
                status.header().is_some_and(|header| header.member_id() == status.leader());
            if is_leader {
                return Ok(url.clone());
            }
        }
        anyhow::bail!("etcd has no leader")
    }
}

async fn put(mut client: Client, first: usize, count: usize, work: Work) -> Result<()> {
    let value = vec![b'v'; work.value];
    for number in first..first + count {
        client.put(key(number as u64 % work.keys), value.clone(), None).await?;
    }
    Ok(())
}
