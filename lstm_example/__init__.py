"""What ``recompute_lstm.py`` is made of.

It uses the package as other programs do, and is not installed with it:

    options, arguments               the command line
    run, stop_signals                from a command line to an exit code, however the run ends
    training_run, plan_sweep         a run of one plan, and of several
    model_builder                    models of plans, and their compiled programs:
    graphcore_models, keras_models   by Graphcore's API on TensorFlow, and by Keras alone elsewhere
    training, callbacks              training, and what is done after each update
    run_record, poplar_report        what is known of a run so far, and what Poplar reports
    run_report, sweep_report,        what is reported: printed, drawn and written, and shown while
    progress, event_log              it goes on
    sequence_plans, plan_choice      plans, and what fits a budget
    memory_check, output_checks,     what is checked before training
    path_failures
    saves, save_files, save_state    saves
    resumption                       runs that go on from them
    network                          the network as it is saved, and texts that it continues
    data                             what is learnt
    worker_processes                 several processes
"""
