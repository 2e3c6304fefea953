//! Who may attach, and what they may use: a file in TOML. `admission` refuses clients and
//! sessions, `objects` what is beyond a session's quotas, `shares` what is beyond its user's.
//!
//! ```toml
//! sessions = 1024           # of all users together
//! cards = 256               # users that have card memory, the same
//!
//! [others]                  # users that are not named below
//! attach = false
//!
//! [users.alice]             # by name, or by number: [users.1000]
//! attach = true
//! sessions = 16
//! loans = 4096              # pieces of memory that all its sessions lend together
//! groups = 256              # multicast groups that they are in, the same
//! kernels = 512             # kernels, the same
//! pieces = 65536            # pieces of card memory that all the user's programs have together
//! kernel_steps = 1000000    # steps of an invocation of one of these
//! kernel_memory_bytes = 1073741824  # memory of the instances of their modules, the same
//! memory_bytes = 17179869184  # bytes that the daemon maps or keeps for them, the same
//! keep_seconds = 3600       # how long a session may outlive its client
//! lend_process_memory = true
//! lend_files = true
//!
//! [users.alice.quotas]      # what one session may use; what is not said stays as it is
//! arena_bytes = 268435456
//! memory_bytes = 8589934592
//!
//! [users.alice.card_memory] # the user's part of the card's memory, see `dma`
//! near_bytes = 4194304
//! far_bytes = 4294967296
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use remora_nic::{Rate, RateLimits};

use super::lent::{LOANS_MAX, Lender};
use super::running::ALL_KERNELS;
use super::shares::ALL_GROUPS;
use crate::dma::Sizes;
use crate::kernel::ModuleLimits;
use crate::message::{Keep, Quotas, SERVES_OTHERS};

/// Who may attach. By default, the daemon's own user and root may.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The most sessions of all users.
    sessions: u32,
    /// The most users that have card memory.
    cards: u32,
    others: Rule,
    users: BTreeMap<u32, Rule>,
    /// The daemon serves other users, too.
    shares: bool,
}

/// What a user may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    pub(crate) attach: bool,
    /// The most sessions at a time.
    pub(crate) sessions: u32,
    /// The most pieces of memory that all of the user's sessions lend together.
    pub(crate) loans: u32,
    /// The most multicast groups that all of them are in.
    pub(crate) groups: u32,
    /// The most kernels of all of them.
    pub(crate) kernels: u32,
    /// The most pieces of card memory of all of the user's programs, with a session or without.
    pub(crate) pieces: u32,
    /// The most steps of an invocation of one of these, whatever their programs ask for.
    pub(crate) kernel_steps: u64,
    /// The most memory of all instances of their modules, in bytes.
    pub(crate) kernel_memory_bytes: u64,
    /// The most bytes of what else the daemon has for them: used parts of their arenas, memory that
    /// they lend, and modules. `None`: as many as their quotas say.
    pub(crate) memory_bytes: Option<u64>,
    /// The longest time for which a session is kept; `None`: without limit.
    pub(crate) keep_seconds: Option<u32>,
    /// The daemon may reach the memory of the user's processes by `/proc/PID/mem`.
    pub(crate) lend_process_memory: bool,
    /// The daemon reads and writes files that they lend, and the card stands meanwhile.
    pub(crate) lend_files: bool,
    pub(crate) quotas: Quotas,
    /// Card memory that the user's programs have together.
    pub(crate) card_memory: Sizes,
    /// How fast each session may be.
    pub(crate) rates: RateLimits,
    /// How many shares of the card each session has.
    pub(crate) weight: u16,
}

/// The most sessions of all users where nothing is said.
const SESSIONS: u32 = 1024;
/// Users that have card memory: each is 4 MiB of the machine's at least, for good.
const CARDS: u32 = 256;
/// The most sessions of one user, who leaves some to others.
const SESSIONS_OF_A_USER: u32 = 256;
/// The same of loans, groups, kernels and their memory, where there are several users.
const LOANS_OF_A_USER: u32 = LOANS_MAX as u32 / 2;
const GROUPS_OF_A_USER: u32 = ALL_GROUPS / 2;
const KERNELS_OF_A_USER: u32 = ALL_KERNELS / 2;
/// Pieces of card memory of a user, wherever others have theirs: each takes memory of the daemon's
/// to be kept apart.
const PIECES_OF_A_USER: u32 = 65_536;
/// As much as the longest payload takes, and results as long.
const KERNEL_STEPS: u64 = 1 << 26;
const KERNEL_MEMORY_OF_A_USER: u64 = ALL_KERNEL_MEMORY / 2;
/// The memory of instances of modules that the daemon has.
const ALL_KERNEL_MEMORY: u64 = ModuleLimits::TOTAL_MEMORY as u64;

/// The same of all other memory: half of the machine's.
fn memory_of_a_user() -> Option<u64> {
    let about = fs::read_to_string("/proc/meminfo").ok()?;
    let total = about.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024 / 2)
}

/// Why a policy cannot be read.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read the policy {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is no policy.
    #[error("the policy {path} cannot be understood: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// A rate, a burst or a weight of zero.
    #[error(
        "the policy {path} has a rate, burst or weight of zero for {user}: leave it out, or forbid \
         the user to attach"
    )]
    Zero {
        /// The file.
        path: PathBuf,
        /// Whose rule it is.
        user: String,
    },
    /// A user is unknown.
    #[error("the policy names the user {0}, whom this system does not know: write a number")]
    User(String),
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    sessions: Option<u32>,
    cards: Option<u32>,
    #[serde(default)]
    others: Entry,
    #[serde(default)]
    users: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    attach: Option<bool>,
    sessions: Option<u32>,
    loans: Option<u32>,
    groups: Option<u32>,
    kernels: Option<u32>,
    pieces: Option<u32>,
    kernel_steps: Option<u64>,
    kernel_memory_bytes: Option<u64>,
    memory_bytes: Option<u64>,
    keep_seconds: Option<u32>,
    lend_process_memory: Option<bool>,
    lend_files: Option<bool>,
    weight: Option<u16>,
    #[serde(default)]
    rates: Rates,
    #[serde(default)]
    quotas: QuotasEntry,
    #[serde(default)]
    card_memory: CardMemoryEntry,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rates {
    elements_per_second: Option<u64>,
    elements_burst: Option<u64>,
    bytes_per_second: Option<u64>,
    bytes_burst: Option<u64>,
}

impl Rates {
    /// What is not said of a burst is a hundredth of a second's worth, and at least so much.
    fn rate(per_second: Option<u64>, burst: Option<u64>, least: u64) -> Option<Rate> {
        let per_second = per_second?;
        let burst = burst.unwrap_or((per_second / 100).max(least));
        Some(Rate { per_second, burst })
    }

    fn limits(&self) -> RateLimits {
        RateLimits {
            elements: Rates::rate(self.elements_per_second, self.elements_burst, 32),
            bytes: Rates::rate(self.bytes_per_second, self.bytes_burst, 65_536),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotasEntry {
    arena_bytes: Option<u64>,
    memory_bytes: Option<u64>,
    regions: Option<u32>,
    loans: Option<u32>,
    queue_pairs: Option<u32>,
    completion_queues: Option<u32>,
    entries: Option<u64>,
    others: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CardMemoryEntry {
    near_bytes: Option<u64>,
    far_bytes: Option<u64>,
}

impl Default for Policy {
    fn default() -> Policy {
        let own = rustix::process::geteuid().as_raw();
        let (loans, groups, kernels) = (LOANS_MAX as u32, ALL_GROUPS, ALL_KERNELS);
        let kernel_memory_bytes = ALL_KERNEL_MEMORY;
        let memory_bytes = None;
        let some = Rule::new(true);
        let all = Rule { loans, groups, kernels, kernel_memory_bytes, memory_bytes, ..some };
        Policy {
            sessions: SESSIONS,
            cards: CARDS,
            others: Rule::new(false),
            users: [own, 0].map(|uid| (uid, all)).into(),
            shares: false,
        }
    }
}

impl Rule {
    fn new(attach: bool) -> Rule {
        Rule {
            attach,
            sessions: SESSIONS_OF_A_USER,
            loans: LOANS_OF_A_USER,
            groups: GROUPS_OF_A_USER,
            kernels: KERNELS_OF_A_USER,
            pieces: PIECES_OF_A_USER,
            kernel_steps: KERNEL_STEPS,
            kernel_memory_bytes: KERNEL_MEMORY_OF_A_USER,
            memory_bytes: memory_of_a_user(),
            keep_seconds: None,
            lend_process_memory: false,
            lend_files: false,
            quotas: Quotas::default(),
            card_memory: Sizes::default(),
            rates: RateLimits::default(),
            weight: 1,
        }
    }

    fn of(entry: &Entry, attach: bool) -> Rule {
        let Rule { quotas: usual, card_memory: Sizes { near, far }, .. } = Rule::new(attach);
        let QuotasEntry { arena_bytes, memory_bytes, regions, queue_pairs, .. } = entry.quotas;
        let QuotasEntry { completion_queues, entries, others, loans, .. } = entry.quotas;
        Rule {
            attach: entry.attach.unwrap_or(attach),
            sessions: entry.sessions.unwrap_or(SESSIONS_OF_A_USER),
            loans: entry.loans.unwrap_or(LOANS_OF_A_USER),
            groups: entry.groups.unwrap_or(GROUPS_OF_A_USER),
            kernels: entry.kernels.unwrap_or(KERNELS_OF_A_USER),
            pieces: entry.pieces.unwrap_or(PIECES_OF_A_USER),
            kernel_steps: entry.kernel_steps.unwrap_or(KERNEL_STEPS),
            kernel_memory_bytes: entry.kernel_memory_bytes.unwrap_or(KERNEL_MEMORY_OF_A_USER),
            memory_bytes: entry.memory_bytes.or_else(memory_of_a_user),
            keep_seconds: entry.keep_seconds,
            lend_process_memory: entry.lend_process_memory.unwrap_or(false),
            lend_files: entry.lend_files.unwrap_or(false),
            rates: entry.rates.limits(),
            weight: entry.weight.unwrap_or(1),
            card_memory: Sizes {
                near: entry.card_memory.near_bytes.unwrap_or(near),
                far: entry.card_memory.far_bytes.unwrap_or(far),
            },
            quotas: Quotas {
                arena_bytes: arena_bytes.unwrap_or(usual.arena_bytes),
                memory_bytes: memory_bytes.unwrap_or(usual.memory_bytes),
                regions: regions.unwrap_or(usual.regions),
                loans: loans.unwrap_or(usual.loans),
                queue_pairs: queue_pairs.unwrap_or(usual.queue_pairs),
                completion_queues: completion_queues.unwrap_or(usual.completion_queues),
                entries: entries.unwrap_or(usual.entries),
                others: others.unwrap_or(usual.others),
            },
        }
    }

    /// What a process of the user `uid`, whose rule this is, may lend; `None`: it has ended.
    pub(super) fn lender(&self, uid: u32, pid: Option<i32>) -> Lender {
        let (may_lend_process_file, may_lend_files) = (self.lend_process_memory, self.lend_files);
        Lender { pid, uid, may_lend_process_file, may_lend_files }
    }

    /// What is granted of a wish to keep a session.
    pub(crate) fn keep(&self, wish: Keep) -> Keep {
        match (wish, self.keep_seconds) {
            (Keep::Forever, Some(most)) => Keep::Seconds(most),
            (Keep::Seconds(wish), Some(most)) => Keep::Seconds(wish.min(most)),
            (wish, _) => wish,
        }
    }
}

impl Policy {
    /// Reads a policy. The daemon's own user and root may attach if it does not say otherwise.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn read(path: &Path) -> Result<Policy, PolicyError> {
        let text = fs::read_to_string(path)
            .map_err(|source| PolicyError::File { path: path.into(), source })?;
        Policy::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Policy, PolicyError> {
        let syntax = |error: toml::de::Error| PolicyError::Syntax {
            path: path.into(),
            message: error.to_string(),
        };
        let document: Document = toml::from_str(text).map_err(syntax)?;
        let mut policy = Policy {
            sessions: document.sessions.unwrap_or(SESSIONS),
            cards: document.cards.unwrap_or(CARDS),
            others: Rule::of(&document.others, false),
            users: Policy::default().users.keys().map(|uid| (*uid, Rule::new(true))).collect(),
            shares: true,
        };
        let rules = document.users.iter().map(|(name, entry)| (name.as_str(), entry));
        for (name, entry) in rules.chain([("others", &document.others)]) {
            if !entry.rates.limits().is_valid() || entry.weight == Some(0) {
                return Err(PolicyError::Zero { path: path.into(), user: name.into() });
            }
        }
        for (name, entry) in &document.users {
            policy.users.insert(user(name)?, Rule::of(entry, true));
        }
        Ok(policy)
    }

    /// What the user `uid` may do.
    pub(crate) fn rule(&self, uid: u32) -> &Rule {
        self.users.get(&uid).unwrap_or(&self.others)
    }

    /// May the user `uid` attach?
    ///
    /// # Errors
    /// What a client is told that may not.
    pub(crate) fn check_attach(&self, uid: u32) -> Result<(), String> {
        match self.rule(uid).attach {
            true => Ok(()),
            false => Err(format!("user {uid} {SERVES_OTHERS}")),
        }
    }

    /// The most sessions of all users.
    pub(crate) fn sessions(&self) -> u32 {
        self.sessions
    }

    /// The most users that have card memory.
    pub(crate) fn cards(&self) -> u32 {
        self.cards
    }

    /// May other users than the daemon's own ask for a session?
    pub(crate) fn shares(&self) -> bool {
        self.shares
    }
}

/// The number of a user, who is named in `/etc/passwd`, or by the number.
fn user(name: &str) -> Result<u32, PolicyError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut fields = users.lines().map(|line| line.split(':'));
    let found = fields.find_map(|mut fields| {
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    found.ok_or_else(|| PolicyError::User(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Policy, PolicyError> {
        Policy::parse(Path::new("policy.toml"), text)
    }

    #[test]
    fn without_a_file_the_own_user_may_attach() {
        let policy = Policy::default();
        let own = rustix::process::geteuid().as_raw();
        assert!(policy.rule(own).attach && policy.rule(0).attach);
        assert!(!policy.rule(own + 4711).attach);
        assert!(!policy.shares());
        assert!(policy.rule(own).sessions < policy.sessions(), "one user leaves some to others");
        let shared = parse("").unwrap();
        let most = |policy: &Policy| (policy.rule(own).loans, policy.rule(own).groups);
        assert_eq!(most(&policy), (LOANS_MAX as u32, ALL_GROUPS), "there is nobody else");
        assert_eq!(most(&shared), (LOANS_MAX as u32 / 2, ALL_GROUPS / 2));
        let kernels = |policy: &Policy| policy.rule(own).kernels;
        assert_eq!((kernels(&policy), kernels(&shared)), (ALL_KERNELS, ALL_KERNELS / 2));
        let memory = |policy: &Policy| policy.rule(own).kernel_memory_bytes;
        assert_eq!((memory(&policy), memory(&shared)), (4 << 30, 2 << 30));
        let bytes = |policy: &Policy| policy.rule(own).memory_bytes;
        assert_eq!(bytes(&policy), None);
        let half = bytes(&shared).expect("the system says how much memory there is");
        assert!((1 << 20..1 << 50).contains(&half), "{half}");
    }

    #[test]
    fn a_file_names_users_and_what_they_may_use() {
        let text = "
            sessions = 5
            [others]
            attach = true
            sessions = 1
            loans = 10
            kernels = 6
            kernel_steps = 7
            kernel_memory_bytes = 9
            [users.root]
            lend_process_memory = true
            [users.4711]
            attach = false
            lend_files = true
            [users.4712]
            memory_bytes = 8
            keep_seconds = 60
            weight = 4
            [users.4712.quotas]
            regions = 3
            loans = 4
            [users.4712.rates]
            elements_per_second = 1000
            bytes_per_second = 100000000
            bytes_burst = 7
        ";
        let policy = parse(text).unwrap();
        assert!(policy.shares());
        assert_eq!((policy.sessions(), policy.rule(9999).sessions), (5, 1));
        assert_eq!((policy.rule(9999).loans, policy.rule(4712).groups), (10, GROUPS_OF_A_USER));
        assert_eq!((policy.rule(9999).kernels, policy.rule(4712).kernels), (6, KERNELS_OF_A_USER));
        assert_eq!((policy.rule(9999).kernel_steps, policy.rule(0).kernel_steps), (7, 1 << 26));
        assert_eq!(policy.rule(9999).kernel_memory_bytes, 9);
        assert_eq!(policy.rule(4712).memory_bytes, Some(8));
        assert!(policy.rule(9999).attach && !policy.rule(4711).attach);
        assert!(policy.rule(0).attach && policy.rule(0).lend_process_memory);
        assert!(!policy.rule(0).lend_files && policy.rule(4711).lend_files);
        let rule = policy.rule(4712);
        assert_eq!((rule.quotas.regions, rule.quotas.others), (3, Quotas::default().others));
        assert_eq!((rule.quotas.loans, policy.rule(0).quotas.loans), (4, 1024));
        let rate = |per_second, burst| Some(Rate { per_second, burst });
        assert_eq!((rule.rates.elements, rule.weight), (rate(1000, 32), 4));
        assert_eq!(rule.rates.bytes, rate(100_000_000, 7));
        assert_eq!(policy.rule(0).rates, RateLimits::default());
        assert_eq!(rule.keep(Keep::Forever), Keep::Seconds(60));
        assert_eq!(rule.keep(Keep::Seconds(5)), Keep::Seconds(5));
        assert_eq!(rule.keep(Keep::No), Keep::No);
        assert_eq!(policy.rule(0).keep(Keep::Forever), Keep::Forever);
    }

    #[test]
    fn the_documentation_has_a_policy() {
        let text = include_str!("../../../../docs/nic.md");
        let (_, policy) = text.split_once("```toml\n").unwrap();
        let (policy, _) = policy.split_once("```").unwrap();
        // Tests know no user of that name.
        let policy = parse(&policy.replace("users.alice", "users.4712")).unwrap();
        assert_eq!(policy.rule(4712).kernel_memory_bytes, 1 << 30);
    }

    #[test]
    fn mistakes_are_named() {
        let unknown = parse("[users.nobody-of-this-name]").unwrap_err().to_string();
        assert!(unknown.contains("nobody-of-this-name"), "{unknown}");
        let typo = parse("[others]\natach = true").unwrap_err().to_string();
        assert!(typo.contains("atach") && typo.contains("policy.toml"), "{typo}");
        for wrong in ["weight = 0", "[others.rates]\nelements_per_second = 0"] {
            let error = parse(&format!("[others]\n{wrong}")).unwrap_err().to_string();
            assert!(error.contains("others") && error.contains("zero"), "{error}");
        }
        let none = Policy::read(Path::new("/no/such/policy")).unwrap_err().to_string();
        assert!(none.contains("/no/such/policy"), "{none}");
    }
}
