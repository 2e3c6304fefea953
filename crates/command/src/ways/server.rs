//! The far end: memory, kernels, and an application whose CPU answers RPCs.
//!
//! One thread does everything, because the figures count the work of one core: it drives the card,
//! or, between [`Op::Begin`] and [`Op::End`], answers RPCs. It spins in both cases.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::size::parse_size;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use remora::kernel::{Binding, Bound, Loader};
use remora::nic::Access;
use remora::nic::queue::{Completion, RecvRequest, Status};
use remora::offload::kernel::builtin::column::Column;
use remora::offload::kernel::builtin::filter::{Compare, FilterTap, Params as Filter};
use remora::offload::kernel::builtin::{consistency, get};
use remora::{Connection, Device, DeviceOptions, MemoryRegion, OpenError};
use remora_store::service::{Service, ServiceOptions};
use remora_store::tablespace::TablespaceOptions;

use super::agreed::{
    End, FILTER_BELOW, FLAKY, PeerRegion, Ready, STREAMED_MAX, TABLESPACES, params,
};
use super::image::ELEMENT_LEN;
use super::rpc::{self, Op, word};
use super::served::Served;
use super::sketchers::Sketchers;
use crate::{child, output};

const PORT: u16 = 18_516;
const PATIENCE: Duration = Duration::from_secs(20);
/// Steps of the card between reads of the TCP connection, which are a system call each.
const STEPS: u32 = 512;

/// `remora ways`: the far end.
#[derive(Debug, Args)]
pub struct Server {
    /// Bytes of memory for structures
    #[arg(long, value_parser = parse_size)]
    memory: u64,
    /// Bytes of memory for each stream
    #[arg(long, value_parser = parse_size, default_value = "64K")]
    stream: u64,
    /// How many kernels to load as WebAssembly
    #[arg(long, default_value_t = 0)]
    loaded: u64,
    /// Serve a store, too, that may take this many bytes
    #[arg(long, value_parser = parse_size, default_value = "0")]
    store: u64,
    /// Pin the process to the N-th core that it may use, counted from 0
    #[arg(long, value_name = "N")]
    pin: Option<usize>,
    /// Serve chains, too, and answer SENDs
    #[arg(long)]
    chains: bool,
}

/// The far end at work.
struct Serving {
    memory: MemoryRegion,
    plain: MemoryRegion,
    streams: End,
    /// The threads that count what is streamed to the application.
    sketchers: Sketchers,
    served: Option<Served>,
    _store: Option<Service>,
    _kernels: [Binding; 3],
    _connections: [Connection; 2],
    _calls: End,
}

impl Server {
    /// Serves until its standard input ends; `loader` compiles the kernels to load.
    pub fn run(self, loader: Loader) -> Result<()> {
        let sketchers = Sketchers::start()?;
        if let Some(which) = self.pin {
            child::pin(which)?;
        }
        child::end_with_stdin()?;
        let device = if self.chains { open_for_chains()? } else { Device::open()? };
        let pd = device.alloc_pd()?;
        let alloc = |len: u64| pd.alloc(len as usize, Access::all());
        let memory = alloc(self.memory)?;
        let plain = alloc(self.stream)?;
        let streams = [alloc(self.stream)?, alloc(self.stream)?, alloc(self.stream)?];
        let listener = device.listen(PORT)?;
        let tcp = rpc::Service::listen()?;
        let store = (self.store > 0).then(|| serve_store(&device, self.store)).transpose()?;
        let place = |region: &MemoryRegion| PeerRegion {
            addr: region.addr(),
            rkey: region.key(),
            len: region.len(),
        };
        output::json_line(&Ready {
            card: SocketAddr::new(device.info().address, listener.port()),
            tcp: tcp.local_addr()?,
            memory: place(&memory),
            plain: place(&plain),
            hyperloglog: place(&streams[0]),
            filter: place(&streams[1]),
            shuffle: place(&streams[2]),
            store: store.as_ref().map(Service::address),
            threads: sketchers.len(),
        })?;
        let kernels = deploy(&device, &memory, &streams)?;
        super::loaded::load(loader, &device, &[memory.grant_read()], self.loaded)?;
        let accept = || -> Result<(End, Connection)> {
            let incoming = listener.accept().wait(PATIENCE).context("no client connects")?;
            let end = End::new(&device, &pd)?;
            let connection =
                incoming.accept(end.qp.clone(), &[], &params(&device)).wait(PATIENCE)?;
            for _ in 0..STREAMED_MAX {
                end.qp.post_recv(&RecvRequest { wr_id: 0, sges: &[] })?;
            }
            Ok((end, connection))
        };
        let ((calls, first), (streams, second)) = (accept()?, accept()?);
        let served = || Served::accept(&device, &pd, &listener, &memory);
        let served = self.chains.then(served).transpose()?;
        let serving = Serving {
            memory,
            plain,
            streams,
            sketchers,
            served,
            _store: store,
            _kernels: kernels,
            _connections: [first, second],
            _calls: calls,
        };
        serving.serve(&tcp)
    }
}

/// A device whose card's own thread has real-time priority, if the system permits, so that the card
/// serves chains whatever its host does.
fn open_for_chains() -> Result<Device> {
    match DeviceOptions::new().real_time().open() {
        Err(error @ OpenError::RealTime(_)) => {
            eprintln!("{error}\nWithout that, the card waits for its turn beside the writers.");
            Ok(Device::open()?)
        }
        opened => Ok(opened?),
    }
}

/// Serves a store with [`TABLESPACES`], whose limit is `limit` bytes.
fn serve_store(device: &Device, limit: u64) -> Result<Service> {
    // The same keys lie in the same places in each run.
    const SEED: u64 = 7;
    let mut options = ServiceOptions::new(limit, SEED);
    let space = |(name, codec): &(&str, _)| TablespaceOptions {
        codec: *codec,
        ..TablespaceOptions::new(name)
    };
    options.tablespaces = TABLESPACES.iter().map(space).collect();
    Ok(Service::start(device, &options)?)
}

/// Deploys the built-in kernels and [`flaky`], and binds a receive kernel to each stream.
fn deploy(
    device: &Device,
    memory: &MemoryRegion,
    streams: &[MemoryRegion; 3],
) -> Result<[Binding; 3]> {
    let grants = vec![memory.grant_write()];
    let builtin = device.deploy_builtin(&grants)?;
    let deployment = remora::kernel::Deployment::new("flaky", &*grants);
    device.deploy(FLAKY, deployment, flaky)?;
    let below = Filter {
        row_len: 8,
        column: Column::u64(0),
        compare: Compare::Less,
        operand: FILTER_BELOW,
        count_only: false,
    };
    let bind = |region: &MemoryRegion, grants: Vec<_>, tap| {
        device.bind_kernel(Bound::Region(region.key()), grants, tap)
    };
    Ok([
        bind(&streams[0], vec![], builtin.hyperloglog.tap())?,
        bind(&streams[1], vec![], Box::new(FilterTap::new(below)))?,
        bind(&streams[2], grants, builtin.shuffle.tap(0))?,
    ])
}

/// The checked read, for measuring the cost of a failed check. The first reading is of an object
/// whose checksum is wrong; 16 bytes of parameters before the others name it. The second reading is
/// of the right object, and "always succeeds" as in StRoM's Figure 10.
async fn flaky(context: remora::kernel::Context) -> Result<(), remora::kernel::CallStatus> {
    let (wrong, right) = context
        .params(|bytes| {
            let (wrong, right) = bytes.split_at(consistency::PARAMS_LEN.min(bytes.len()));
            Ok((consistency::Params::parse(wrong)?, consistency::Params::parse(right)?))
        })
        .await?;
    for (reading, object) in [wrong, right].into_iter().enumerate() {
        if reading > 0 {
            context.yield_now().await?;
        }
        context.fetch(object.address, object.len).await?;
        let check = |object: &mut Vec<u8>| {
            let consistent = consistency::is_consistent(object);
            if !consistent {
                object.clear();
            }
            consistent
        };
        if context.fetched(check).await? {
            return Ok(());
        }
    }
    Err(remora::kernel::CallStatus::INCONSISTENT)
}

impl Serving {
    fn serve(mut self, tcp: &TcpListener) -> Result<()> {
        let mut service = rpc::Service::accept(tcp)?;
        let mut done = [Completion::default(); 32];
        let mut value = Vec::new();
        let mut awaited: Option<u64> = None;
        loop {
            for _ in 0..STEPS {
                if let Some(served) = &mut self.served {
                    served.look()?;
                    continue;
                }
                let count = self.streams.recv_cq.poll(&mut done)?;
                for completion in &done[..count] {
                    self.look_at(completion)?;
                }
            }
            if let Some(count) = awaited {
                if self.sketchers.seen() >= count {
                    let estimate = self.sketchers.report()?.estimate();
                    service.answer(Some(&estimate.to_le_bytes()))?;
                    awaited = None;
                }
                continue;
            }
            match service.receive()? {
                None => {}
                Some((Op::Leave, _)) => return Ok(()),
                Some((Op::Streamed, params)) => awaited = Some(word(params, 0)?),
                Some((Op::Threads, params)) => {
                    self.sketchers.use_threads(word(params, 0)?)?;
                    service.answer(Some(&[]))?;
                }
                Some((Op::Sleep, _)) => {
                    service.answer(Some(&[]))?;
                    self.served()?.sleep()?;
                }
                Some((Op::Writers, params)) => {
                    let count = word(params, 0)?;
                    self.served()?.write_with(count)?;
                    service.answer(Some(&[]))?;
                }
                Some((Op::Begin, _)) => self.answer_rpcs(&mut service, &mut value)?,
                Some((op, _)) => bail!("{op:?} asked for while the card is served"),
            }
        }
    }

    fn served(&mut self) -> Result<&mut Served> {
        self.served.as_mut().context("this end was started without --chains")
    }

    /// The CPU's HyperLogLog: counts a message that has been written as soon as it arrives.
    fn look_at(&mut self, completion: &Completion) -> Result<()> {
        ensure!(completion.status == Status::Success, "a stream broke: {}", completion.status);
        let at = completion.imm_or_key as usize * 8;
        self.sketchers.look_at(&self.plain, at, completion.len as usize)?;
        Ok(self.streams.qp.post_recv(&RecvRequest { wr_id: 0, sges: &[] })?)
    }

    fn answer_rpcs(&mut self, service: &mut rpc::Service, value: &mut Vec<u8>) -> Result<()> {
        service.answer(Some(&[]))?;
        loop {
            value.clear();
            let found = match service.receive()? {
                None => continue,
                Some((Op::End, _)) => return service.answer(Some(&[])),
                Some((Op::List, params)) => self.list(params, value)?,
                Some((Op::Get, params)) => self.get(params, value)?,
                Some((op, _)) => bail!("{op:?} asked for while RPCs are served"),
            };
            service.answer(found.then_some(value.as_slice()))?;
        }
    }

    fn list(&self, params: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let (mut at, key, len) = (word(params, 0)?, word(params, 8)?, word(params, 16)?);
        while at != 0 {
            let mut element = [0; ELEMENT_LEN];
            self.read(at, &mut element)?;
            if word(&element, 0)? == key {
                self.append(word(&element, 16)?, len as usize, value)?;
                return Ok(true);
            }
            at = word(&element, 8)?;
        }
        Ok(false)
    }

    fn get(&self, params: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let params = get::Params::parse(params)
            .map_err(|status| anyhow!("an RPC with wrong parameters: {status}"))?;
        let mut number = params.entry;
        loop {
            let mut entry = [0; get::ENTRY_LEN];
            self.read(params.table + u64::from(number) * get::ENTRY_LEN as u64, &mut entry)?;
            if let Some(found) = get::find(&entry, params.key) {
                self.append(found.addr, found.len as usize, value)?;
                return Ok(true);
            }
            let Some(next) = get::next(&entry) else { return Ok(false) };
            number = next;
        }
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> Result<()> {
        let at = addr.checked_sub(self.memory.addr()).context("an address below the memory")?;
        Ok(self.memory.read_at(at as usize, out)?)
    }

    fn append(&self, addr: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        ensure!(len <= self.memory.len() as usize, "a value that is longer than the memory");
        let from = out.len();
        out.resize(from + len, 0);
        self.read(addr, &mut out[from..])
    }
}
