//! Which path is best here: each is tried and measured, once in a process.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::card_memory::{CardMemory, MemoryKind, Sizes};
use super::channel::Direction;
use super::engine::Engine;
use super::path::calls::{ByFile, ProcessVm};
use super::path::courier;
use super::path::{Application, Mapping, Path, PathKind, Through};
use super::service::Service;
use crate::environment;
use crate::memory::Buffer;

/// The environment variable that forces a path by name, for every process.
pub const PATH_VARIABLE: &str = "REMORA_DMA_PATH";

/// The sizes at which paths are measured, in bytes: a page, and a large block.
pub const SIZES: [usize; 2] = [4 << 10, 1 << 20];

/// How long a path is measured at one size.
const WINDOW: Duration = Duration::from_millis(3);
/// The fewest copies of which the best is taken.
const COPIES: usize = 5;

/// Why no path was chosen.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NoPath {
    /// The path that was asked for is not possible here.
    #[error("the path {kind} is not possible here: {why}")]
    Impossible {
        /// The path asked for.
        kind: PathKind,
        /// Why it is not possible.
        why: String,
    },
    /// The environment names no path.
    #[error("{PATH_VARIABLE}: {0}")]
    Environment(#[from] super::path::UnknownPath),
    /// None is.
    #[error("no path to the application's memory is possible here: `remora dma paths` says why")]
    None,
}

/// What a path costs at one size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cost {
    /// The time of one copy in µs, the best of several.
    pub latency_us: f64,
    /// Bytes that the middle one of these copies moved in a nanosecond, which are GB/s.
    pub gb_per_s: f64,
}

/// A path, and what it costs at each of [`SIZES`], or why it is not possible.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The path.
    pub kind: PathKind,
    /// Its costs.
    pub costs: Result<[Cost; SIZES.len()], String>,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.costs {
            Ok([small, large]) => {
                write!(f, "{}: {:.2} µs, {:.1} GB/s", self.kind, small.latency_us, large.gb_per_s)
            }
            Err(why) => write!(f, "{}: {why}", self.kind),
        }
    }
}

/// A card's memory and an engine, and memory of this process that all paths reach, to try them on.
#[derive(Debug)]
pub struct Bench {
    service: Service,
    card: Arc<CardMemory>,
    application: Application,
    memory: Arc<Buffer>,
}

impl Bench {
    /// A small card, and `len` bytes of an application's memory.
    ///
    /// # Errors
    /// The system has no memory, or starts no more threads.
    pub fn new(len: usize) -> io::Result<Bench> {
        let sizes = Sizes { near: 2 * len as u64, far: len as u64 };
        let card = CardMemory::new(sizes).map_err(io::Error::other)?;
        let (application, memory) = Application::of_this_process(len).map_err(io::Error::other)?;
        memory.fill(1);
        let service = Service::start(Engine::new(card.clone()))?;
        Ok(Bench { service, card, application, memory })
    }

    /// The card's memory.
    pub fn card(&self) -> &Arc<CardMemory> {
        &self.card
    }

    /// The application's memory.
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    /// The application's memory, as a card's process is told of it.
    pub fn application(&self) -> &Application {
        &self.application
    }

    /// Sets up a path from this process's own memory to the card's.
    ///
    /// # Errors
    /// Why it is not possible here.
    pub fn open(&self, kind: PathKind) -> io::Result<Box<dyn Path>> {
        let application = &self.application;
        Ok(match kind {
            PathKind::Mapping => Box::new(Mapping::of(application).map_err(io::Error::other)?),
            PathKind::Engine => Box::new(Through::open(&self.service, self.memory.clone())?),
            PathKind::ProcessVm => Box::new(ProcessVm::of(application)?),
            PathKind::ProcMem => Box::new(ByFile::of_process(application)?),
            PathKind::Memfd => Box::new(ByFile::of_memory(application)?),
            PathKind::Pipe | PathKind::Udp => {
                Box::new(courier::with_thread(kind, self.memory.clone())?)
            }
        })
    }
}

/// Sets up a path to an application's memory in another process, or in this one, where the path
/// needs only the card's side. (Pipes and datagrams need a [courier] there, and the engine's path
/// is the application's own.)
///
/// # Errors
/// Why it is not possible.
pub fn open(kind: PathKind, application: &Application) -> io::Result<Box<dyn Path>> {
    Ok(match kind {
        PathKind::Mapping => Box::new(Mapping::of(application).map_err(io::Error::other)?),
        PathKind::ProcessVm => Box::new(ProcessVm::of(application)?),
        PathKind::ProcMem => Box::new(ByFile::of_process(application)?),
        PathKind::Memfd => Box::new(ByFile::of_memory(application)?),
        PathKind::Engine | PathKind::Pipe | PathKind::Udp => {
            let why = "this path needs the application’s help";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
    })
}

/// Tries all paths in this process and measures those that are possible, the first time that this
/// is asked. It takes some 50 ms.
pub fn measured() -> &'static [Measured] {
    static MEASURED: OnceLock<Vec<Measured>> = OnceLock::new();
    MEASURED.get_or_init(|| match Bench::new(SIZES[1]) {
        Ok(bench) => {
            let at = bench.card.range(MemoryKind::Near).start as usize;
            let card = (bench.card.bytes(), at);
            measure_all(card, Direction::HostToCard, |kind| bench.open(kind))
        }
        Err(error) => {
            let why = error.to_string();
            PathKind::ALL.map(|kind| Measured { kind, costs: Err(why.clone()) }).into()
        }
    })
}

/// The path that the environment forces, or else the best that was [measured].
///
/// # Errors
/// The path that is forced is not possible, or none is.
pub fn chosen(forced: Option<PathKind>) -> Result<PathKind, NoPath> {
    choose(measured(), or_environment(forced)?)
}

/// The path that was asked for, or else the one that the environment forces, if it does.
///
/// # Errors
/// The environment names no path.
pub fn or_environment(forced: Option<PathKind>) -> Result<Option<PathKind>, NoPath> {
    let name = environment::text(PATH_VARIABLE);
    if forced.is_some() || name.is_empty() {
        return Ok(forced);
    }
    Ok(Some(name.parse()?))
}

/// The path that is forced, if it is possible; or else the one whose times, each as a multiple of
/// the best path's at that size, have the least sum. Of equals it is the earlier in
/// [`PathKind::ALL`].
///
/// # Errors
/// The path that is forced is not possible, or none is.
pub fn choose(measured: &[Measured], forced: Option<PathKind>) -> Result<PathKind, NoPath> {
    if let Some(kind) = forced {
        let found = measured.iter().find(|path| path.kind == kind);
        let why = match found.map(|path| &path.costs) {
            Some(Ok(_)) => return Ok(kind),
            Some(Err(why)) => why.clone(),
            None => "it was not tried".into(),
        };
        return Err(NoPath::Impossible { kind, why });
    }
    let possible =
        || measured.iter().filter_map(|path| Some((path.kind, path.costs.as_ref().ok()?)));
    let best = |size: usize| {
        possible().map(|(_, costs)| costs[size].latency_us).fold(f64::INFINITY, f64::min)
    };
    let best: [f64; SIZES.len()] = std::array::from_fn(best);
    let multiple = |costs: &[Cost; SIZES.len()]| -> f64 {
        costs.iter().zip(best).map(|(cost, best)| cost.latency_us / best).sum()
    };
    let rank = |kind: PathKind| PathKind::ALL.iter().position(|other| *other == kind);
    possible()
        .min_by(|(kind, costs), (other, others)| {
            multiple(costs).total_cmp(&multiple(others)).then(rank(*kind).cmp(&rank(*other)))
        })
        .map(|(kind, _)| kind)
        .ok_or(NoPath::None)
}

/// Measures all paths that `open` sets up between the first bytes of an application's memory and
/// the card's from an offset on. Those that the direction leads to are overwritten.
pub fn measure_all(
    (card, at): (&Buffer, usize),
    direction: Direction,
    open: impl Fn(PathKind) -> io::Result<Box<dyn Path>>,
) -> Vec<Measured> {
    let measure = |kind| {
        let costs = open(kind).map_err(|error| error.to_string()).and_then(|mut path| {
            let mut copy = |len| match direction {
                Direction::HostToCard => path.to_card(0, card, at, len),
                Direction::CardToHost => path.to_host(card, at, 0, len),
            };
            let mut cost = |len| cost_of(|| copy(len), len).map_err(|error| error.to_string());
            Ok([cost(SIZES[0])?, cost(SIZES[1])?])
        });
        Measured { kind, costs }
    };
    PathKind::ALL.map(measure).into()
}

/// Copies `len` bytes again and again for a while; the first copy, which may have to fault pages
/// in, does not count.
///
/// # Errors
/// That of the first copy that fails.
pub fn cost_of<E>(mut copy: impl FnMut() -> Result<(), E>, len: usize) -> Result<Cost, E> {
    copy()?;
    let start = Instant::now();
    let mut times = Vec::with_capacity(4096);
    while times.len() < COPIES || start.elapsed() < WINDOW {
        let before = Instant::now();
        copy()?;
        times.push(before.elapsed().as_nanos().max(1) as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(Cost { latency_us: times[0] / 1e3, gb_per_s: len as f64 / times[times.len() / 2] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(kind: PathKind, times: [f64; 2]) -> Measured {
        let costs = times.map(|latency_us| Cost { latency_us, gb_per_s: 1.0 });
        Measured { kind, costs: Ok(costs) }
    }

    #[test]
    fn the_least_cost_at_both_sizes_wins() {
        let good = path(PathKind::Memfd, [1.0, 10.0]);
        let quick = path(PathKind::Mapping, [0.5, 40.0]);
        let none = Measured { kind: PathKind::Engine, costs: Err("why not".into()) };
        let paths = [none, quick, good];
        assert_eq!(choose(&paths, None), Ok(PathKind::Memfd));
        assert_eq!(choose(&paths, Some(PathKind::Mapping)), Ok(PathKind::Mapping));
        let refused = choose(&paths, Some(PathKind::Engine)).unwrap_err();
        assert_eq!(refused.to_string(), "the path engine is not possible here: why not");
        assert_eq!(choose(&paths[..1], None), Err(NoPath::None));
    }

    #[test]
    fn of_equals_the_first_is_chosen() {
        let paths = [path(PathKind::Pipe, [1.0, 1.0]), path(PathKind::ProcessVm, [1.0, 1.0])];
        assert_eq!(choose(&paths, None), Ok(PathKind::ProcessVm));
    }
}
