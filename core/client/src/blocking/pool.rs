//! Threads for tool handlers: started when needed, bounded, ended with the session.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A bounded pool of threads.
pub(super) struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    change: Condvar,
    most: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    ended: bool,
}

type Job = Box<dyn FnOnce() + Send>;

impl Pool {
    /// A pool of at most `most` threads, none of them started yet.
    pub(super) fn new(most: usize) -> Self {
        let state = Mutex::new(State::default());
        Self { inner: Arc::new(Inner { state, change: Condvar::new(), most: most.max(1) }) }
    }

    /// Runs `job` as soon as a thread is free. A panic in it ends the job alone.
    ///
    /// # Errors
    /// When the system gives no thread and none runs yet; the job is given back, not run.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), std::io::Error> {
        let mut state = self.inner.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= self.inner.most {
            drop(state);
            self.inner.change.notify_one();
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        let thread = std::thread::Builder::new().name("broca-tool".to_owned());
        match thread.spawn(move || inner.work()) {
            Ok(_) => state.threads += 1,
            // Others will come to it.
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                state.jobs.pop_back();
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for Pool {
    /// Threads end when they are through with what they do; what was not begun is not begun any more.
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.ended = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
        self.inner.change.notify_all();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool(at most {} threads)", self.inner.most)
    }
}

impl Inner {
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // The panic hook has printed it; who waits for the job's answer has its own deadline.
                drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)));
                state = self.lock();
                continue;
            }
            if state.ended {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            state = self.change.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn jobs_run_side_by_side_up_to_the_bound_and_all_of_them_run() {
        let pool = Pool::new(3);
        let together = Arc::new(Barrier::new(3));
        let (sender, receiver) = channel();
        for _ in 0..9 {
            let (together, sender) = (Arc::clone(&together), sender.clone());
            pool.run(move || {
                together.wait();
                sender.send(std::thread::current().id()).unwrap();
            })
            .unwrap();
        }
        let ids: std::collections::HashSet<_> =
            (0..9).map(|_| receiver.recv_timeout(Duration::from_secs(30)).unwrap()).collect();
        assert_eq!(ids.len(), 3);
    }

    #[test]
    fn a_panic_ends_its_job_alone_and_threads_end_with_the_pool() {
        let pool = Pool::new(1);
        let (sender, receiver) = channel();
        pool.run(|| panic!("one job")).unwrap();
        let other = sender.clone();
        pool.run(move || other.send(1).unwrap()).unwrap();
        assert_eq!(receiver.recv_timeout(Duration::from_secs(30)), Ok(1));
        let inner = Arc::clone(&pool.inner);
        drop((pool, sender));
        let mut tries = 0;
        while inner.lock().threads > 0 {
            assert!(tries < 3_000, "the thread did not end");
            tries += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
