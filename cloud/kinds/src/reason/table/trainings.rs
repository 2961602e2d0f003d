//! The reasons of a `TrainingModel`.

macro_rules! training_reasons {
    ($next:ident $($then:ident)* : $($before:tt)*) => {
        $next! { $($then)* : $($before)*
            TrainingModel {
                /// A setting is out of its range, or contradicts another one.
                TrainingInvalid: Obstacle => Failed,
                /// The run has more workers than are supported.
                TooManyWorkers: Obstacle => Failed,
                /// The Model of the first weights has no web address with a digest.
                InitialWeightsInvalid: Obstacle => Pending,
                /// The output Model belongs to another `TrainingModel`.
                OutputConflict: Obstacle => Failed,
                /// The API server rejects the aggregator's volume, Deployment or Service.
                AggregatorRefused: Obstacle => Failed,
                /// The controller has no rights for trainings in the namespace.
                RoleBindingMissing: Problem => Pending,
                /// The workers of the round train.
                Training: Progress => Running,
                /// The weights are measured.
                Evaluating: Progress => Running,
                /// The output Model receives the weights.
                Publishing: Progress => Running,
                /// The last run has a result.
                Succeeded: Progress => Completed,
                /// The spec suspends runs and rounds.
                Suspended: Progress => Pending,
                /// The Dataset has not grown enough for the next run.
                WaitingForGrowth: Progress => Pending,
                /// The aggregator is starting.
                WaitingForAggregator: Progress => Pending,
                /// Workers have not sent their update, and the round waits for them.
                WaitingForWorkers: Problem => Pending,
                /// The aggregator cannot be reached.
                AggregatorUnreachable: Problem => Pending,
                /// The aggregator serves another `TrainingModel`.
                OtherTrainingModel: Problem => Failed,
                /// The aggregator has other settings for the same run.
                RunChanged: Problem => Failed,
                /// The aggregator has a later run.
                RunEnded: Problem => Pending,
                /// The aggregator does not know the key of a node.
                NodeNotTrusted: Problem => Pending,
                /// A node reports another key than the trusted one.
                NodeKeyChanged: Problem => Pending,
                /// The first key of a node waits until a person trusts it.
                NodeKeyNotRecorded: Problem => Pending,
                /// The dataset has no sample.
                DatasetEmpty: Problem => Pending,
                /// Weights or the program cannot be downloaded.
                DownloadFailed: Problem => Pending,
                /// Weights or the program have another digest.
                DigestMismatch: Problem => Failed,
                /// The program ended with an error.
                ScriptFailed: Problem => Failed,
                /// The program did not end in time.
                TimedOut: Problem => Failed,
                /// The program wrote no weights or no valid result.
                OutputMissing: Problem => Failed,
                /// An update has other tensors than the base.
                ShapeMismatch: Problem => Failed,
                /// An update contains NaN or an infinity.
                NotFinite: Problem => Failed,
                /// An update moves the weights too far.
                NormTooLarge: Problem => Failed,
                /// An update exceeds the size limit.
                UpdateTooLarge: Problem => Failed,
                /// A worker reported more samples than its dataset has.
                SamplesNotCredible: Problem => Failed,
                /// The containers of a worker failed too often.
                BackoffLimit: Problem => Failed,
                /// A round ended with too few updates.
                TooFewWorkers: Problem => Failed,
                /// The workers whose updates count have fewer samples than the others.
                MostSamplesMissing: Problem => Failed,
                /// A user stopped the run.
                Stopped: Progress => Completed,
                /// The same updates gave other weights.
                NonDeterministic: Problem => Failed,
                /// The weights could not be measured.
                EvaluationFailed: Problem => Failed,
                /// The weights do not beat the published ones.
                NotBetter: Problem => Completed,
                /// The run took longer than allowed.
                DeadlineExceeded: Problem => Failed,
                /// The aggregator lost the files of a run, which starts again.
                RoundRepeated: Problem => Pending,
                /// The aggregator lost published weights.
                ContentLost: Problem => Failed,
                /// A newer agent or aggregator reports a reason that this controller does not know.
                TrainingFailed: Problem => Failed,
            }
        }
    };
}
