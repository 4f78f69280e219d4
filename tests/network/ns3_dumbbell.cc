// On-off jobs over one bottleneck in ns-3: senders - switch - switch - receivers, one TCP connection a job.
//
// usage: ns3_dumbbell control F rate_bps segment jobs iterations compute_s bytes offset_s marks_at limit ecn rto_ms seed
// F: 1 for MLTCP's, 0 for the base. marks_at, limit: packets of queue at which marks begin, and from which packets are
// dropped. Writes one JSON object. `tests/network/ns3.py` compiles this file and says what the values are.
#include <ns3/core-module.h>
#include <ns3/internet-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>
#include <ns3/traffic-control-module.h>

#include <iostream>
#include <string>
#include <vector>

using namespace ns3;

class OnOffJob {
public:
    OnOffJob(uint64_t bytes, double computeS) : m_bytes(bytes), m_computeS(computeS) {}

    void Connect(Ptr<Node> from, Ptr<Node> to, Address address, uint16_t port, Ptr<TcpCongestionOps> control) {
        auto listening = Socket::CreateSocket(to, TcpSocketFactory::GetTypeId());
        listening->Bind(InetSocketAddress(Ipv4Address::GetAny(), port));
        listening->Listen();
        listening->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address &>(),
                                     MakeCallback(&OnOffJob::Accept, this));
        m_sender = Socket::CreateSocket(from, TcpSocketFactory::GetTypeId());
        if (control)
            DynamicCast<TcpSocketBase>(m_sender)->SetCongestionControlAlgorithm(control);
        m_sender->Bind();
        m_sender->SetSendCallback(MakeCallback(&OnOffJob::Fill, this));
        // Queue discs are initialised when the simulation begins: no packet may be sent before.
        Simulator::Schedule(MilliSeconds(100), [this, address] { m_sender->Connect(address); });
    }

    void Begin() {
        begins.push_back(Simulator::Now().GetSeconds());
        m_unsent = m_bytes;
        m_received = 0;
        Fill(m_sender, 0);
    }

    double Ratio() const { return std::min(1.0, double(m_received) / m_bytes); }

    std::vector<double> begins, ends;
    Callback<void> ended;

private:
    // Also called when the connection is set up, when there is nothing to send yet.
    void Fill(Ptr<Socket> socket, uint32_t) {
        while (m_unsent > 0 && socket->GetTxAvailable() > 0) {
            uint32_t size = std::min<uint64_t>({m_unsent, socket->GetTxAvailable(), 1 << 16});
            int taken = socket->Send(Create<Packet>(size));
            if (taken <= 0)
                return;
            m_unsent -= taken;
        }
    }

    void Accept(Ptr<Socket> socket, const Address &) { socket->SetRecvCallback(MakeCallback(&OnOffJob::Receive, this)); }

    void Receive(Ptr<Socket> socket) {
        while (auto packet = socket->Recv())
            m_received += packet->GetSize();
        if (m_received < m_bytes || begins.size() == ends.size())
            return;
        ends.push_back(Simulator::Now().GetSeconds());
        Simulator::Schedule(Seconds(m_computeS), &OnOffJob::Begin, this);
        ended();
    }

    uint64_t m_bytes, m_unsent = 0, m_received = 0;
    double m_computeS;
    Ptr<Socket> m_sender;
};

// MLTCP: F = 1.75 bytes_ratio + 0.25 times the segments that a control counts as acknowledged.
template <class Base> class Mltcp : public Base {
public:
    explicit Mltcp(OnOffJob *job) : m_job(job) {}

    std::string GetName() const override { return "Mltcp" + Base::GetName(); }

    Ptr<TcpCongestionOps> Fork() override { return CopyObject<Mltcp<Base>>(Ptr<Mltcp<Base>>(this)); }

    void IncreaseWindow(Ptr<TcpSocketState> state, uint32_t acked) override {
        if (state->m_cWnd < state->m_ssThresh)
            return Base::IncreaseWindow(state, acked);
        m_credit += acked * (1.75 * m_job->Ratio() + 0.25);
        uint32_t whole = m_credit;
        m_credit -= whole;
        if (whole > 0)
            Base::IncreaseWindow(state, whole);
    }

private:
    OnOffJob *m_job;
    double m_credit = 0;
};

static Ptr<TcpCongestionOps> MltcpControl(const std::string &base, OnOffJob *job) {
    if (base == "dctcp")
        return CreateObject<Mltcp<TcpDctcp>>(job); // Create would leave the attributes of its base unset
    if (base == "cubic")
        return CreateObject<Mltcp<TcpCubic>>(job);
    return CreateObject<Mltcp<TcpLinuxReno>>(job);
}

static void SetDefaults(const std::string &control, uint32_t segment, bool ecn, double marksAt, int limit,
                        double rtoMs) {
    const TypeId type = control == "dctcp"   ? TcpDctcp::GetTypeId()
                        : control == "cubic" ? TcpCubic::GetTypeId()
                                             : TcpLinuxReno::GetTypeId();
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(type));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(segment));
    for (auto buffer : {"ns3::TcpSocket::SndBufSize", "ns3::TcpSocket::RcvBufSize"})
        Config::SetDefault(buffer, UintegerValue(8 << 20));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(control == "dctcp" ? 1 : 2));
    // Not the default of 200 ms, the smallest retransmission time-out: an iteration's last segment would cause one.
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MicroSeconds(500)));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocketBase::UseEcn", StringValue(ecn ? "On" : "Off"));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(Seconds(rtoMs * 1e-3)));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MicroSeconds(10)));
    // Marks by a step: weight 1, both thresholds at one place, and no ramp ("gentle") from there to twice as much.
    Config::SetDefault("ns3::RedQueueDisc::Gentle", BooleanValue(false));
    Config::SetDefault("ns3::RedQueueDisc::UseEcn", BooleanValue(true));
    Config::SetDefault("ns3::RedQueueDisc::UseHardDrop", BooleanValue(false));
    Config::SetDefault("ns3::RedQueueDisc::QW", DoubleValue(1));
    Config::SetDefault("ns3::RedQueueDisc::MeanPktSize", UintegerValue(segment + 54));
    for (auto threshold : {"ns3::RedQueueDisc::MinTh", "ns3::RedQueueDisc::MaxTh"})
        Config::SetDefault(threshold, DoubleValue(marksAt));
    Config::SetDefault("ns3::RedQueueDisc::MaxSize", QueueSizeValue(QueueSize(QueueSizeUnit::PACKETS, limit)));
}

static NetDeviceContainer Cable(Ptr<Node> a, Ptr<Node> b, double rateBps, Time delay, const std::string &deviceQueue) {
    PointToPointHelper cable;
    cable.SetDeviceAttribute("DataRate", DataRateValue(DataRate(uint64_t(rateBps))));
    cable.SetDeviceAttribute("Mtu", UintegerValue(9000));
    cable.SetChannelAttribute("Delay", TimeValue(delay));
    cable.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue(deviceQueue));
    return cable.Install(a, b);
}

static void WriteTimes(const char *name, const std::vector<OnOffJob *> &jobs, std::vector<double> OnOffJob::*times) {
    std::cout << "\"" << name << "\": [";
    for (size_t job = 0; job < jobs.size(); job++) {
        std::cout << (job ? ", [" : "[");
        for (size_t k = 0; k < (jobs[job]->*times).size(); k++)
            std::cout << (k ? ", " : "") << (jobs[job]->*times)[k];
        std::cout << "]";
    }
    std::cout << "], ";
}

int main(int count, char **arguments) {
    if (count != 15) {
        std::cerr << "ns3_dumbbell: expected 14 arguments, got " << count - 1 << "\n";
        return 2;
    }
    const std::string control = arguments[1];
    auto number = [&](int k) { return std::stod(arguments[k]); };
    const bool mltcp = number(2) != 0, ecn = number(12) != 0;
    const double rateBps = number(3), computeS = number(7), offsetS = number(9);
    const int jobCount = number(5), limit = number(11);
    const size_t iterations = number(6);
    const Time hop = NanoSeconds(12500); // 100 us a round trip: one on each access link, two on the bottleneck
    SetDefaults(control, number(4), ecn, number(10), limit, number(13));
    RngSeedManager::SetSeed(number(14));

    NodeContainer senders(jobCount), receivers(jobCount), switches(2);
    InternetStackHelper internet;
    internet.Install(NodeContainer(senders, receivers, switches));
    Ipv4AddressHelper addresses;
    TrafficControlHelper edge, middle;
    edge.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue("100000p"));
    if (ecn)
        middle.SetRootQueueDisc("ns3::RedQueueDisc");
    else
        middle.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue(std::to_string(limit) + "p"));
    // A packet in the device's own queue is in no queue that marks.
    auto bottleneck = Cable(switches.Get(0), switches.Get(1), rateBps, 2 * hop, "1p");
    auto queue = middle.Install(bottleneck.Get(0)).Get(0);
    addresses.SetBase("10.0.0.0", "255.255.255.0");
    addresses.Assign(bottleneck);

    std::vector<OnOffJob *> jobs;
    auto draws = CreateObject<UniformRandomVariable>();
    size_t finished = 0;
    for (int k = 0; k < jobCount; k++) {
        auto up = Cable(senders.Get(k), switches.Get(0), 4 * rateBps, hop, "100000p");
        auto down = Cable(switches.Get(1), receivers.Get(k), 4 * rateBps, hop, "100000p");
        edge.Install(up);
        edge.Install(down);
        addresses.SetBase(("10.1." + std::to_string(k) + ".0").c_str(), "255.255.255.0");
        addresses.Assign(up);
        addresses.SetBase(("10.2." + std::to_string(k) + ".0").c_str(), "255.255.255.0");
        const Ipv4Address to = addresses.Assign(down).GetAddress(1);
        auto job = new OnOffJob(std::stoull(arguments[8]), computeS);
        job->ended = Callback<void>([&finished, job, jobCount, iterations] {
            finished += job->ends.size() == iterations;
            if (finished == size_t(jobCount))
                Simulator::Stop();
        });
        job->Connect(senders.Get(k), receivers.Get(k), InetSocketAddress(to, 5000 + k), 5000 + k,
                     mltcp ? MltcpControl(control, job) : nullptr);
        Simulator::Schedule(Seconds(1 + k * offsetS + draws->GetValue(0, 1e-4)), &OnOffJob::Begin, job);
        jobs.push_back(job);
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    Simulator::Stop(Seconds(1000));
    Simulator::Run();
    std::cout.precision(10);
    std::cout << "{";
    WriteTimes("begins", jobs, &OnOffJob::begins);
    WriteTimes("ends", jobs, &OnOffJob::ends);
    std::cout << "\"marked\": " << queue->GetStats().nTotalMarkedPackets
              << ", \"dropped\": " << queue->GetStats().nTotalDroppedPackets
              << ", \"events\": " << Simulator::GetEventCount() << "}\n";
    return 0;
}
